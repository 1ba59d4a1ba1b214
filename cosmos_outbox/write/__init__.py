"""
The write side: what an application reads and changes, and its events, committed in one transactional batch.

In the order of a commit, from the application down:

    outbox           makes units of work; `run` does a change again where another writer was first
    unit_of_work     what is committed together
      repository       entities by type: create, read, list, query, delete
      own_documents    the same for models of the application's own
      identity_map     one object for each document
        tracked          what is known of a document, and what will happen to it
      dispatch         handlers inside the process, before the save
      batch            all that one commit writes, assembled once
        storable         can what is written be read back as it is?
      commit           sent, repeated where that is safe, resolved where an answer was lost
"""
