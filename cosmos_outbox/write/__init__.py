"""
The write side: an application reads and changes entities, and one transactional batch commits them with their events.

The modules in the order in which a commit passes through them:

    idempotency               carries out a repeated request once, and gives each repetition the first answer
    outbox                    makes units of work; `run` repeats a change if another writer was first
    unit_of_work              the changes that are committed together
      repository              entities by type: create, read, find, query, delete, and pages of them
      application_documents   reads and writes models of the application's own, which are stored as they are
      change_tracking         one object for each document: what is known of it, and what the next commit does with it
      event_handlers          handlers that run inside the process, before the commit
      commit_batch            assembles all writes of one commit once
      commit                  sends a commit, repeats it where that is safe, finds out its outcome if an answer was lost

Three more modules are for values, events and documents that need special care:

    unstorable_values         refuses a value that would be different when it is read back
    event_sizes               refuses a large event, or stores its payload in a document of its own
    fresh_reads               reads a document in at least the version that its caller asks for
"""
