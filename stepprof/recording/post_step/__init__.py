"""Work after a recorded step: uploads, a user's command, retention."""
