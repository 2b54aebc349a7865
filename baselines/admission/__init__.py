"""Who is let in under overload: admission policies in front of a policy that places what they admit."""
