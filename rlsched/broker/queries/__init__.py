"""What people are told: lists, reasons, reports, history."""
