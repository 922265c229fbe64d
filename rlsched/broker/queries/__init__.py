"""Answers to clients' questions: lists, explanations, status reports and history."""
