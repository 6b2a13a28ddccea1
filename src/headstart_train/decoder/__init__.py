"""A decoder that gradients flow through."""
