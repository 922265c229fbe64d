"""Compiled rules. Each rule consists of four functions of a state, which one decision loop calls.

    begin(s, p, o, now_s)         before the decisions for partition `p` at this instant
    next_move(s, p, o, now_s)     next `Move` there; a move that does nothing ends the loop
    after(s, p, o, move, now_s)   after a move has been applied
    next_look_s(s, p, o, now_s)   when to decide there again without an event; infinite: never

`s` is the state (`cluster.arrays.StateArrays`), `o` the options (`decide.options.RuleOptions`). A rule keeps
its data between `begin` and `after` in the scratch fields of the state. `begin` can be called once per
instant or before each move; the moves are the same.

`Steps` holds the four functions of a rule and its properties for the loop.
"""
