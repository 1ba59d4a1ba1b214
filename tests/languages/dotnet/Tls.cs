// TLS: a client has to trust the emulators' certificate authority, and needs no other, whether it connects to localhost or 127.0.0.1.
using System.Security.Authentication;
using System.Security.Cryptography;
using System.Security.Cryptography.X509Certificates;
using Microsoft.Azure.Cosmos;
using static Emulators;

internal static class Tls
{
    public static async Task Run(Steps steps)
    {
        foreach (var host in new[] { "127.0.0.1", "localhost" })
        {
            var endpoint = new UriBuilder(Variable("COSMOS_ENDPOINT")) { Host = host }.ToString();
            await steps.Check($"{host} by the authority of the emulators", true, async () =>
            {
                using var client = Connect(endpoint: endpoint);
                return (await client.ReadAccountAsync()).Id != "";
            });
        }
        using var key = RSA.Create(2048);
        using var other = new CertificateRequest("CN=other", key, HashAlgorithmName.SHA256, RSASignaturePadding.Pkcs1)
            .CreateSelfSigned(DateTimeOffset.UtcNow.AddDays(-1), DateTimeOffset.UtcNow.AddDays(1));
        await Refused(steps, "by the authorities of this machine", options => options.ServerCertificateCustomValidationCallback = null);
        await Refused(steps, "by another authority", options => options.ServerCertificateCustomValidationCallback =
            (certificate, chain, errors) => TrustedBy(other, certificate, chain, errors));
    }

    private static Task Refused(Steps steps, string name, Action<CosmosClientOptions> change) =>
        steps.Check($"refused {name}", true, async () =>
        {
            using var client = Connect(change);
            try { await client.ReadAccountAsync(); }
            catch (Exception error)
            {
                for (var cause = error; cause != null; cause = cause.InnerException) if (cause is AuthenticationException) return true;
                throw;
            }
            return false;
        });
}
