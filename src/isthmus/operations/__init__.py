"""What an operator does to a namespace's messages, over the wire.

What it is: looking, removing, sending again, carrying to a file and back, statistics and back-ups, for
`isthmus namespace …`; all but the last two work on any Service Bus namespace. What it is not: a command line
(`isthmus.cli`), nor anything that runs in the broker.
"""
