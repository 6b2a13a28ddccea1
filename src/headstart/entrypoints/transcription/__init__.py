"""What recordings of any length say: windows that an encoder reads, one after the other, and times of what is said."""
