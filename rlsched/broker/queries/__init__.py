"""Answers to questions: lists, reasons, reports, history."""
