"""The speech wing: what recordings of any length say, by a model whose encoder reads audio.

A recording becomes windows, each a request like any other; times of segments and words are cut out of what they say. It
adds ``LLM.transcribe``, ``headstart transcribe`` and the routes below ``/v1/audio``.
"""
