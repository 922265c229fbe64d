"""Rules, compiled. Each is four functions of a state, one decision loop calls them.

    begin(s, p, o, now_s)         partition `p` is about to be decided for at this instant
    next_move(s, p, o, now_s)     what to do next there: a `Move`; one that does nothing ends it
    after(s, p, o, move, now_s)   that has just been done
    next_look_s(s, p, o, now_s)   when to decide there again though nothing happens; infinite: never

`s` is the state (`cluster.arrays.StateArrays`), `o` the options (`decide.options.RuleOptions`). A rule keeps
what it has to remember between `begin` and `after` in the scratch of the state; two moves at one instant come
out the same where `begin` is called before each.

`Steps` are the four functions of a rule with what a loop has to know of it.
"""
