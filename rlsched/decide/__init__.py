"""The scheduling core: candidates, features, rules, the `Scheduler` interface, the guard, the record."""
