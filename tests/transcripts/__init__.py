"""Transcripts of the broker's state machine; read them as an introduction to its behaviour."""
