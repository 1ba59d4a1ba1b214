// The steps of the program: each is a claim with a name, what is expected, and how it is found. One that fails does not end the others; one
// that waits in vain ends its topic, for those after it would wait too.
using System.Text.Encodings.Web;
using System.Text.Json;

internal sealed class Steps
{
    private static readonly JsonSerializerOptions Readable = new()
    {
        Encoder = JavaScriptEncoder.UnsafeRelaxedJsonEscaping,
        IncludeFields = true, // of tuples, which would all be equal without
    };
    private static readonly TimeSpan Hung = TimeSpan.FromSeconds(150);
    private string topic = "";

    public List<string> Passed { get; } = [];

    public List<string> Failed { get; } = [];

    // What a topic prepares is a step too: without it, those after it cannot be found
    public async Task About(string name, Func<Steps, Task> run)
    {
        topic = name;
        try { await run(this).WaitAsync(2 * Hung); }
        catch (InVainException) { }
        catch (Exception error) { Fail("what is done between the steps", "no error", error.ToString()); }
    }

    public async Task Check<T>(string name, T expected, Func<Task<T>> find)
    {
        var wanted = JsonSerializer.Serialize(expected, Readable);
        string found;
        try { found = JsonSerializer.Serialize(await find().WaitAsync(Hung), Readable); }
        catch (TimeoutException error)
        {
            Fail(name, wanted, error.ToString());
            throw new InVainException();
        }
        catch (Exception error) { found = error.ToString(); }
        if (found == wanted) Passed.Add($"{topic}: {name}");
        else Fail(name, wanted, found);
    }

    private void Fail(string name, string expected, string found)
    {
        Failed.Add($"{topic}: {name}");
        Console.WriteLine($"FAILED    {topic}: {name}\n expected {expected}\n found    {found}");
    }

    private sealed class InVainException : Exception;
}
