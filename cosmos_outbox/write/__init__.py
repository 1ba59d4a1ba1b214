"""
The write side: an application reads and changes entities, and one transactional batch commits them with their events.

In the order of a commit, from the application down:

    idempotency               carries out a repeated request once, and gives each repetition the first answer
    outbox                    makes units of work; `run` repeats a change if another writer was first
    unit_of_work              the changes that are committed together
      repository              entities by type: create, read, find, query, delete, and pages of them
      application_documents   the same for models of the application's own, which are stored as they are
      change_tracking         one object for each document: what is known of it, and what the next commit does with it
      event_handlers          handlers that run inside the process, before the commit
      commit_batch            all writes of one commit, assembled once
      commit                  sends a commit, repeats it where that is safe, finds out its outcome if an answer was lost

These modules are for commits and reads that cannot go on as usual:

    unstorable_values         refuses a value that could not be read back as it is
    event_sizes               refuses a large event, or stores its payload beside it
    fresh_reads               reads a document that is at least as new as its caller knows it to be
"""
