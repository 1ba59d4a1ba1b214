// The steps of the program. Each step has a name, an expected result, and a function that finds the actual result. If a step fails, the
// program goes on. If a step runs into a timeout, the rest of its topic is left out, because later steps would wait in vain, too.
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

    // The preparation of a topic is a step, too. If it fails, the steps after it are not run.
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
