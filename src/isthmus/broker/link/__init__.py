"""The links of a connection: on which clients send, receive, browse, ask and declare transactions."""
