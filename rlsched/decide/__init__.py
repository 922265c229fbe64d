"""How a decision is made: legal candidates, features, the Scheduler interface, the guard, the record."""
