"""The outbox: messages on local disk until their namespace took them.

What it is: the folder of a `DurableSender` (`store`), and a table in the application's own database (`table`). See
docs/how-to/send-durably.md.
"""
