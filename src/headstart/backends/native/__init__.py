"""The native CPU pass: plain C++ behind a C interface, compiled on first use; optional everywhere.

``headstart.backends.native.backend.NativeBackend`` is the way in; nothing is compiled or loaded before it is asked for.
"""
