"""The exception for a request that the server does not answer with a translation."""


class Refusal(Exception):
    """A request that gets an error. Its message is sent to the client.

    Attributes:
      status: the HTTP status, from 400 to 599.
      message: what is wrong and what to do. It has no text that another client sent.
      retry_after: seconds after which the client may try again; 0 if trying again is of no use.
    """

    def __init__(self, status: int, message: str, retry_after: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after
