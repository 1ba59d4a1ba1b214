"""
The write side: what an application reads and changes, and its events, committed in one transactional batch.

In the order of a commit, from the application down:

    idempotency               a request that is repeated takes effect once, and gets the first answer again
    outbox                    makes units of work; `run` does a change again where another writer was first
    unit_of_work              what is committed together
      repository              entities by type: create, read, find, query, delete, and pages of them
      application_documents   the same for models of the application's own, as they are
      change_tracking         one object for each document: what is known of it, and what will happen to it
      event_handlers          handlers inside the process, before the save
      commit_batch            all that one commit writes, assembled once
      commit                  sent, repeated where that is safe, resolved where an answer was lost

And what a commit meets where it cannot go on as usual:

    unstorable_values         the refusal of a value that could not be read back as it is
    event_sizes               the refusal of a large event, or its payload beside it
    fresh_reads               the read of a document at least as new as its caller knows
"""
