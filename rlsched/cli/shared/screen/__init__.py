"""What is shown again and again: a terminal's screen, who asks the broker beside it, and the loop."""
