"""The scheduling core: policies, rules, queue orders, dials, schedulers, the guard, decision records."""
