"""Is an answer right? One scorer per benchmark, and the sandbox that runs programs."""
