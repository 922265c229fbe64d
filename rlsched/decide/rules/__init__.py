"""Compiled rules. Each rule consists of four functions of a state, which one decision loop calls.

    begin(s, p, o, now_s)         prepare the decisions for partition `p` at this instant
    next_move(s, p, o, now_s)     return the next `Move` in `p`; a move that does nothing ends the loop
    after(s, p, o, move, now_s)   update the rule's data after a move has been applied
    next_look_s(s, p, o, now_s)   return the time to decide again in `p` without an event; infinite: never

`s` is the state (`cluster.arrays.StateArrays`), `o` the options (`decide.options.RuleOptions`). A rule keeps
its data in the scratch fields of the state. The loop calls `begin` once per instant or before each move; a
rule must return the same moves in both cases.

`Steps` holds the four functions of a rule, and the properties of the rule that the loop needs.
"""
