// The requests to Cosmos DB that the tests of Microsoft's sample transactional-outbox-pattern make (`Contacts.Tests`, 46 tests). Each step
// has the number of its test.
//
// 20 of the 24 tests in `ContactsIntegrationTest` are here: 001-007, 010, 013-024, and the work of their fixture. The other four send no
// request: 008 (a contact is staged twice), 009 (nothing is saved), 011 and 012 (unmodified objects are not saved). The tests in
// `ContactsCommandsTest` (8, with a store in memory), `ContactsTest` (12, entities and events) and `ValidatorsTest` (2) send no requests,
// either. So 26 of the 46 tests are not here.
//
// As in the sample, the tests depend on each other: 001 to 006, 013 to 015 and 022 use the same contact. The others have their own.
using Microsoft.Azure.Cosmos;
using static Emulators;
using static ReferenceStore;

internal static class Reference
{
    private const string Pair = "2 documents, 2 etags", Single = "1 documents, 1 etags";
    private const int ShortTtl = 10;

    public static async Task Run(Steps steps)
    {
        await Container("reference");
        using var client = await CosmosClient.CreateAndInitializeAsync(Variable("COSMOS_ENDPOINT"), Variable("COSMOS_KEY"),
            [(DatabaseId, "reference")], new()
            {
                ConnectionMode = ConnectionMode.Gateway,
                LimitToEndpoint = true,
                ServerCertificateCustomValidationCallback = Trusted,
                SerializerOptions = new() { PropertyNamingPolicy = CosmosPropertyNamingPolicy.CamelCase, IgnoreNullValues = true },
            });
        var data = client.GetContainer(DatabaseId, "reference");
        var (store, id) = (new ReferenceStore(data), Guid.NewGuid().ToString());

        await steps.Check("fixture: the account is read", true, async () => (await client.ReadAccountAsync()).Id != "");
        await Story(steps, store, id);
        await Pages(steps, store, data);
        await Singles(steps, store);
        await AfterDeletion(steps, store, id);
        await steps.Check("fixture: the contact is deleted in the end", 204,
            async () => (int)(await data.DeleteItemAsync<Document>(id, new(id))).StatusCode);
    }

    private static async Task Story(Steps steps, ReferenceStore store, string id)
    {
        await steps.Check("001 Create_Contact: contact and event in one batch", Pair,
            () => store.Commit(Create(id), Event(id, "ContactCreatedEvent")));
        await steps.Check("002 Read_Contact: as it was stored", (Create(id).Document, true), async () =>
        {
            var contact = await store.Read(id);
            return (contact with { Etag = null }, !string.IsNullOrEmpty(contact.Etag));
        });
        foreach (var (test, change) in new (string, Func<Contact, Contact>)[]
        {
            ("003 UpdateCompany_Contact", contact => contact with { Company = "NewComp" }),
            ("004 UpdateName_Contact", contact => contact with { FirstName = "Jim", LastName = "Stark" }),
            ("005 UpdateDescription_Contact", contact => contact with { Description = "This is a new description" }),
            ("006 UpdateEmail_Contact", contact => contact with { Email = "jd@ex.com" }),
        })
        {
            await steps.Check($"{test}: by the etag of the read", (Pair, true), async () =>
            {
                var contact = await store.Read(id);
                var changed = Replace(contact, change(contact.Data));
                return (await store.Commit(changed, Event(id, "ContactUpdatedEvent")), await store.Read(id) == changed.Document);
            });
        }
        await steps.Check("013 Read_NotModified_Contact: by the etag that is there", "304",
            async () => await Refused(store.Read(id, (await store.Read(id)).Etag)));
        await steps.Check("014 MidAir_Collision: another etag, in a batch", "412",
            async () => await Refused(store.Commit(Replace(await store.Read(id) with { Etag = "12" }), Event(id, "ContactCompanyUpdatedEvent"))));
        await steps.Check("015 Delete_Contact: it stays, marked as deleted", (Pair, true), async () =>
        {
            var contact = await store.Read(id);
            var deleted = Replace(contact, contact.Data with { Deleted = true });
            return (await store.Commit(deleted, Event(id, "ContactDeletedEvent")), (await store.Read(id)).Data.Deleted);
        });
    }

    private static Task Pages(Steps steps, ReferenceStore store, Container data) =>
        steps.Check("007 ReadAll_Contacts: those that are not deleted, in pages of at most four, by their tokens", (9, 9, true), async () =>
        {
            for (var number = 0; number < 9; number++) await store.Commit(Create(Guid.NewGuid().ToString()));
            var query = new QueryDefinition("SELECT * FROM c WHERE c.type = @type AND c.data.deleted = false").WithParameter("@type", ContactType);
            List<string> read = [];
            var (token, largest) = (default(string), 0);
            do
            {
                using var page = data.GetItemQueryIterator<Document>(query, token, new() { MaxItemCount = 4 });
                var contacts = await page.ReadNextAsync();
                read.AddRange(contacts.Select(contact => contact.Id));
                (token, largest) = (contacts.ContinuationToken, Math.Max(largest, contacts.Count));
            }
            while (!string.IsNullOrEmpty(token));
            return (read.Count, read.Distinct().Count(), largest <= 4);
        });

    // A single document is written without a batch. The write asks for no content, so the etag is taken from the header of the answer.
    private static async Task Singles(Steps steps, ReferenceStore store)
    {
        Dictionary<string, Change> created = [];
        foreach (var test in new[] { "010 Save_Single", "016", "017", "018", "019", "020", "021" })
        {
            var change = Create(Guid.NewGuid().ToString());
            created[test] = change with { Document = change.Document with { Ttl = ShortTtl } };
            await steps.Check($"{test}: one document is created", Single, () => store.Commit(created[test]));
        }
        Document Created(string test) => created[test].Document;

        await steps.Check("016 Update_Single_MidAir_Collision: another etag", "412",
            () => Refused(store.Commit(Replace(Created("016") with { Etag = "123" }))));
        await steps.Check("017 Delete_Single_MidAir_Collision: another etag", "412",
            () => Refused(store.Commit(Replace(Created("017") with { Etag = "123" }, new Contact { Deleted = true }))));
        await steps.Check("018 Update_Single_NotFound: missing, whatever the etag", "404", () =>
        {
            var missing = Guid.NewGuid().ToString();
            return Refused(store.Commit(Replace(Created("018") with { Id = missing, PartitionKey = missing, Etag = "123" })));
        });
        await steps.Check("019 Create_Single_Conflict: its id is there", "409",
            () => Refused(store.Commit(new Change(State.Created, Created("019") with { Etag = null }))));
        await steps.Check("020 Delete_Single: by the etag that its creation answered, with an event", Pair,
            () => store.Commit(Replace(Created("020"), new Contact { Deleted = true }), Event(Created("020").Id, "ContactDeletedEvent")));
        await steps.Check("021 Read_Single_NotModified: by the etag that its creation answered", "304",
            () => Refused(store.Read(Created("021").Id, Created("021").Etag)));
        await steps.Check("their time to live of ten seconds", "404", async () =>
        {
            await Advance(ShortTtl + 1);
            return await Refused(store.Read(Created("021").Id));
        });
    }

    private static async Task AfterDeletion(Steps steps, ReferenceStore store, string id)
    {
        await steps.Check("022 Create_Contact_Conflict: its id is there, though it is marked as deleted", "409",
            () => Refused(store.Commit(Create(id), Event(id, "ContactCreatedEvent"))));
        await steps.Check("023 Delete_Contact: what a deletion reads first has the etag that the batch answered", true, async () =>
        {
            var contact = Create(Guid.NewGuid().ToString());
            await store.Commit(contact, Event(contact.Document.Id, "ContactCreatedEvent"));
            return (await store.Read(contact.Document.Id)).Etag == contact.Document.Etag;
        });
        await steps.Check("024 Delete_Contact_NotFound", "404", () => Refused(store.Read(Guid.NewGuid().ToString())));
    }
}
