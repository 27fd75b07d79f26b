"""Where segments live and how a session is opened whose work runs at one; called by the driver."""
