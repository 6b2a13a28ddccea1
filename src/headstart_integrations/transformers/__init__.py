"""Passes computed by transformers' own modelling code, for models that Headstart has no description of."""
