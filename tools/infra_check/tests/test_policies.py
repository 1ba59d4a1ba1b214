"""
The policies of the deployment find what is planted, and nothing in the templates as they are; `make check-infra` runs this.
"""

from __future__ import annotations

import functools

import pytest

from tools.infra_check import policy
from tools.infra_check.tests.planting import as_they_are, planted

pytestmark = pytest.mark.looptime(False)


def test_the_templates_as_they_are_violate_nothing():
    assert [] == policy.violations(as_they_are())


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("cosmos.bicep", "disableLocalAuth: true", "disableLocalAuth: false", "disableLocalAuth is False"),
        ("servicebus.bicep", "    disableLocalAuth: true\n", "", "disableLocalAuth is None"),
        ("monitoring.bicep", "DisableLocalAuth: true", "DisableLocalAuth: false", "DisableLocalAuth is False"),
        ("monitoring.bicep", "      disableLocalAuth: true\n", "", "the workspace accepts keys"),
        ("registry.bicep", "adminUserEnabled: false", "adminUserEnabled: true", "adminUserEnabled is True"),
        ("worker.bicep", "value: topicName", "value: 'Endpoint=sb://x'", "a secret is named"),
        ("cosmos.bicep", "= account.id", "= account.listKeys().primaryMasterKey", "a secret is named"),
        ("api.bicep", "value: cosmosEndpoint", "value: store.properties.connectionString", "a secret"),
        ("cosmos.bicep", "minimalTlsVersion: 'Tls12'", "minimalTlsVersion: 'Tls11'", "minimalTlsVersion is Tls11"),
        ("servicebus.bicep", "minimumTlsVersion: '1.2'", "minimumTlsVersion: '1.0'", "minimumTlsVersion is 1.0"),
        ("api.bicep", "allowInsecure: false", "allowInsecure: true", "takes plain HTTP"),
        ("cosmos.bicep", "      defaultTtl: -1\n", "", "defaultTtl must be -1"),
        ("cosmos.bicep", "'/id'", "'/leaseToken'", "containers and their partition keys"),
        ("cosmos.bicep", "excludedPaths: [\n          {\n            path: '/*'", "excludedPaths: [\n          {\n            path: '/x/*'", "every path"),
        ("cosmos.bicep", "'/type/?'", "'/kind/?'", "/type/? is not indexed"),
        ("cosmos.bicep", "'/partitionKey/?'", "'/key/?'", "/partitionKey/? is not indexed"),
        ("cosmos.bicep", "type: 'Continuous'", "type: 'Periodic'", "no continuous backup"),
        ("servicebus.bicep", "requiresDuplicateDetection: true", "requiresDuplicateDetection: false", "requiresDup"),
        ("servicebus.bicep", "enablePartitioning: false", "enablePartitioning: true", "enablePartitioning is True"),
        ("servicebus.bicep", "Window: 'P1D'", "Window: 'PT10M'", "too short"),
        ("servicebus.bicep", "requiresSession: true", "requiresSession: false", "requiresSession is False"),
        ("servicebus.bicep", "    lockDuration", "    autoDeleteOnIdle: 'P1D'\n    lockDuration", "deletes itself"),
        ("servicebus.bicep", "scope: topic", "scope: namespace", "gets Service Bus Data Sender on Microsoft.Serv"),
        ("servicebus.bicep", "'69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'", "'090c5cfd-751d-490a-894a-3ce6f1109419'", "worker lacks Service Bus Data Sender"),
        ("cosmos-roles.bicep", "/colls/${dataContainerName}'", "'", "api gets executeQuery"),
        ("cosmos-roles.bicep", "roleDefinitionId: feedReader.id", "roleDefinitionId: documentWriter.id", "worker gets executeQuery"),
        ("cosmos-roles.bicep", "/colls/${dataContainerName}'", "/colls/${leaseContainerName}'", "api gets"),
        ("cosmos-roles.bicep", "'${containers}/readChangeFeed'", "'${containers}/*'", "gets * on"),
        ("cosmos-roles.bicep", "          '${items}/delete'\n          '${containers}", "          '${containers}", "worker lacks items/delete on parked"),
        ("cosmos-roles.bicep", "          '${items}/delete'\n        ]", "        ]", "worker lacks items/delete on data, with deleteAfterPublish"),
        ("cosmos-roles.bicep", " = if (workerDeletes) {", " = {", "worker gets items/delete on data"),
        ("main.bicep", "leaseContainerName: leaseContainerName\n    parkedContainerName: parkedContainerName\n    directoryContainerName: directoryContainerName\n    directoryParkedContainerName: directoryParkedContainerName\n    apiPrincipalId", "leaseContainerName: dataContainerName\n    parkedContainerName: parkedContainerName\n    directoryContainerName: directoryContainerName\n    directoryParkedContainerName: directoryParkedContainerName\n    apiPrincipalId", "worker lacks executeQuery, items/create"),
        ("main.bicep", "workerPrincipalId: identities.outputs.workerPrincipalId\n    consumer", "workerPrincipalId: identities.outputs.apiPrincipalId\n    consumer", "worker lacks readChangeFeed, readMetadata on data"),
        ("main.bicep", "senderPrincipalId: identities.outputs.worker", "senderPrincipalId: identities.outputs.api", "api gets Service Bus Data Sender"),
        ("cosmos-roles.bicep", "principalId: apiPrincipalId\n    roleDefinitionId: documentKeeper.id", "principalId: apiPrincipalId\n    roleDefinitionId: documentWriter.id", "api gets items/delete on data"),
        ("cosmos-roles.bicep", "principalId: operatorPrincipalId\n    roleDefinitionId: leaseReader.id", "principalId: operatorPrincipalId\n    roleDefinitionId: documentWriter.id", "operator gets items/create, items/delete, items/replace on leases"),
        ("cosmos-roles.bicep", "in leaseOperatorPrincipalIds:", "in operatorPrincipalIds:", "lease operator lacks executeQuery, items/create"),
        ("cosmos-roles.bicep", ", operatorPrincipalIds, leaseOperatorPrincipalIds)", ", operatorPrincipalIds)", "lease operator may not read the account"),
        ("worker.bicep", "'OUTBOX_DELETE_AFTER_PUBLISH'", "'OUTBOX_DELETE'", "OUTBOX_DELETE is no setting"),
        ("worker.bicep", "port: 8080", "port: 8081", "is probed at"),
        ("worker.bicep", "'OUTBOX_TOPIC'", "'OUTBOX_TOPICS'", "OUTBOX_TOPICS is no setting"),
        ("worker.bicep", "'OUTBOX_TOPIC'", "'OTHER'", "OUTBOX_TOPIC is required"),
        ("worker.bicep", "'OUTBOX_PARKED_CONTAINER'", "'OTHER'", "one bad event halts"),
        ("servicebus.bicep", "principalType: operatorPrincipalType", "principalType: 'User'", "operator has principalType User"),
        ("cosmos-roles.bicep", "{\n    principalId: operatorPrincipalId\n    roleDefinitionId: feedReader.id", "{\n    principalId: operatorPrincipalId\n    roleDefinitionId: documentWriter.id", "operator gets"),
        ("worker.bicep", "value: identityClientId", "value: 'another'", "AZURE_CLIENT_ID of the worker is another"),
        ("worker.bicep", "terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 45", "is killed"),
        ("worker.bicep", "@minValue(2)\n", "@minValue(1)\n", "fewer than two"),
        ("worker.bicep", "path: '/readyz'", "path: '/livez'", "is probed at"),
        ("worker.bicep", "      registries", "      ingress: {\n        external: true\n      }\n      registries", "no ingress"),
        ("alerts.bicep", "'DeadletteredMessages'", "'ActiveMessages'", "the alert dead-letters asks"),
        ("alerts.bicep", "queries/parked-keys.kql", "queries/lease-halted.kql", "the alert parked-keys asks another query"),
        ("alerts.bicep", "queries/worker-unready.kql", "queries/lease-halted.kql", "the alert worker-unready asks another query"),
        ("alerts.bicep", "measured: true", "measured: false", "on aks the alert alarms asks nothing"),
        ("alerts.bicep", "        people.id\n", "", "has no receiver"),
        ("identities.bicep", "  tags: tags\n", "", "has no tags"),
        # How the account, the topic and the containers are made.
        ("cosmos.bicep", "defaultConsistencyLevel: 'Session'", "defaultConsistencyLevel: 'Eventual'", "Eventual: readers"),
        ("cosmos.bicep", "name: 'EnableServerless'", "name: 'EnableServerles'", "the account has the capabilities"),
        ("cosmos.bicep", "          {\n            path: '/data/deleted/?'\n          }\n", "", "/data/deleted/? is not indexed"),
        ("cosmos.bicep", "options: serverless ? {} : {", "options: {", "the container's throughput is 5000"),
        ("main.bicep", "dataMaxThroughput int = 5000", "dataMaxThroughput int = 4000", "lowers the peak from 5000 to 4000"),
        ("servicebus.bicep", "lockDuration: 'PT1M'", "lockDuration: 'PT10M'", "PT10M is no time to lock"),
        ("servicebus.bicep", "Window: 'P1D'", "Window: 'P8D'", "longer than P7D"),
        ("servicebus.bicep", "defaultMessageTimeToLive: 'P14D'", "defaultMessageTimeToLive: 'PT1S'", "too short for a subscriber"),
        ("servicebus.bicep", "capacity: sku == 'Premium' ? capacity : null", "capacity: capacity", "'capacity': 1}, not"),
        ("cosmos-roles.bicep", "  dependsOn: [\n    workerOnLeases\n  ]\n", "", "may change at the same time"),
        ("cosmos-roles.bicep", "    workerOnData\n    workerDeletesOnData", "    workerDeletesOnData", "at the same time on containerapps, with deleteAfterPublish ''"),
        ("cosmos-roles.bicep", "    workerOnData\n    workerDeletesOnData", "    workerDeletesOnData", "at the same time on aks, with deleteAfterPublish ''"),
        ("cosmos-roles.bicep", "    workerOnData\n    workerDeletesOnData", "    workerOnData", "at the same time on aks, with deleteAfterPublish '*'"),
        ("cosmos-roles.bicep", "    consumerOnDirectoryParked\n    kedaOnLeases", "    kedaOnLeases", "at the same time on containerapps, with deleteAfterPublish '*'"),
        ("cosmos-roles.bicep", "    consumerOnDirectoryParked\n    kedaOnLeases", "    consumerOnDirectoryParked", "at the same time on aks, with deleteAfterPublish ''"),
        ("cosmos.bicep", "      id: databaseName", "      id: dataContainerName", "contacts calls itself data"),
        ("cosmos.bicep", "      id: leaseContainerName", "      id: parkedContainerName", "leases calls itself parked"),
        ("cosmos.bicep", "version: 2", "version: 1", "containers and their partition keys"),
        ("cosmos.bicep", "maxThroughput: 1000", "maxThroughput: 1500", "the container's throughput is 1500"),
        ("servicebus.bicep", "FilterEvaluationExceptions: true", "FilterEvaluationExceptions: false", "Exceptions is False"),
        ("main.bicep", "  location: location", "  location: environmentName", "group is in <environmentName>, not here"),
        ("alerts.bicep", "  tags: tags\n", "  tags: {}\n", "people has no tags"),
        # Private networking.
        ("network.bicep", "destinationPortRange: '*'", "destinationPortRange: '80'", "everybody in the network reaches"),
        ("private-endpoint.bicep", "registrationEnabled: false", "registrationEnabled: true", "does not ask privatelink"),
        ("network.bicep", "'5671'", "'5672'", "keeps the apps from pe-servicebus-token, port 5671"),
        ("network.bicep", "            appsAddresses\n", "", "keeps the apps from pe-cosmos-token, port 443"),
        ("network.bicep", "'Microsoft.App/environments'", "'Microsoft.Web/serverFarms'", "no subnet that is delegated"),
        ("network.bicep", "'${prefix}.2.0/24'", "'${prefix}.0.0/24'", "the subnets apps and endpoints overlap"),
        ("network.bicep", "access: 'Deny'", "access: 'Allow'", "everybody in the network reaches"),
        ("network.bicep", "privateEndpointNetworkPolicies: 'Enabled'", "privateEndpointNetworkPolicies: 'Disabled'", "no rule guards"),
        ("main.bicep", "'privatelink.servicebus.windows.net'", "'privatelink.documents.azure.com'", "not in privatelink.servicebus"),
        ("main.bicep", "'privatelink.documents.azure.com'", "'privatelink.cosmos.azure.com'", "not in privatelink.documents"),
        ("main.bicep", "groupId: 'Sql'", "groupId: 'MongoDB'", "no private endpoint for Sql"),
        ("main.bicep", "groupId: 'namespace'", "groupId: 'servicebus'", "no private endpoint for namespace"),
        ("main.bicep", "privateNetworking ? 'Disabled' : 'Enabled'", "'Enabled'", "stays open to the internet"),
        ("main.bicep", "privateNetworking ? 'Disabled' : 'Enabled'", "'Disabled'", "cannot be reached without"),
        ("main.bicep", "privateNetworking ? 'Premium' : 'Standard'", "'Standard'", "need Premium"),
        ("main.bicep", "targetId: serviceBus.outputs.id", "targetId: cosmos.outputs.id", "no private endpoint for namespace"),
        ("main.bicep", "    serviceBusEndpoint\n  ]", "  ]", "worker does not wait for serviceBusEndpoint"),
        ("main.bicep", "    cosmosRoles\n    cosmosEndpoint\n  ]", "  ]", "api does not wait for cosmosRoles"),
        ("main.bicep", "param apiExternal bool = false", "param apiExternal bool = true", "is on the internet unasked"),
        ("main.bicep", "param privateNetworking bool = false", "param privateNetworking bool = true", "without privateNetworking"),
        ("private-endpoint.bicep", "privateDnsZoneId: zone.id", "privateDnsZoneId: endpoint.id", "privateDnsZoneId is"),
        ("private-endpoint.bicep", "privateDnsZoneGroups@2024-05-01' = {", "privateDnsZoneGroups@2024-05-01' = if (false) {", "leads to the public address"),
        ("private-endpoint.bicep", "      id: networkId", "      id: subnetId", "does not ask privatelink"),
        # Who is who.
        ("worker.bicep", "identity: identityId", "identity: identityClientId", "registries of the worker"),
        ("worker.bicep", "'${identityId}': {}", "'${identityClientId}': {}", "identity of the worker"),
        ("main.bicep", "identityClientId: identities.outputs.workerClientId", "identityClientId: identities.outputs.apiClientId", "AZURE_CLIENT_ID of the worker"),
        ("main.bicep", "identityId: identities.outputs.workerId", "identityId: identities.outputs.apiId", "identity of the worker"),
        ("main.bicep", "identities.outputs.apiPrincipalId\n      identities.outputs.workerPrincipalId\n", "identities.outputs.apiPrincipalId\n", "worker lacks AcrPull"),
        ("identities.bicep", "workerClientId string = worker.", "workerClientId string = api.", "the output WORKER_CLIENT_ID is"),
        ("identities.bicep", "'api://AzureADTokenExchange'", "'api://AzureAD'", "the worker signs in from a cluster by"),
        ("identities.bicep", "'outbox:outbox-worker'", "'outbox:worker'", "the worker signs in from a cluster by"),
        ("main.bicep", "KEDA_CLIENT_ID string = identities.outputs.keda", "KEDA_CLIENT_ID string = identities.outputs.worker", "the output KEDA_CLIENT_ID is"),
        ("main.bicep", "output AZURE_CONTAINER_REGISTRY_ENDPOINT", "output AZURE_REGISTRY_ENDPOINT", "AZURE_CONTAINER_REGISTRY_ENDPOINT is None"),
        ("monitoring.bicep", "    WorkspaceResourceId: workspace.id\n", "", "has no WorkspaceResourceId"),
        ("main.bicep", "applicationInsightsName: monitoring.outputs.applicationInsightsName", "applicationInsightsName: monitoring.outputs.workspaceId", "which nothing makes"),
        ("main.bicep", "API_URL string = api.outputs.url", "API_URL string = api.name", "the output API_URL is"),
        ("main.bicep", "], onContainerApps ? [\n  workerImage", "], true ? [\n  workerImage", "PLACEHOLDER_LEFT is True, not False"),
        ("main.bicep", "union([\n  apiImage.outputs.deployed\n]", "union([]", "PLACEHOLDER_LEFT is False, not True"),
        ("monitoring.bicep", "420c390055eb'", "420c390055ec'", "worker lacks Monitoring Metrics Publisher"),
        # What the apps are given, and where they are asked.
        ("worker.bicep", "value: topicName", "value: processorName", "OUTBOX_TOPIC of the worker is outbox, not events"),
        ("worker.bicep", "value: leaseContainerName", "value: parkedContainerName", "OUTBOX_LEASE_CONTAINER of the worker is parked"),
        ("worker.bicep", "value: serviceBusNamespace", "value: cosmosEndpoint", "OUTBOX_SERVICEBUS_NAMESPACE of the worker"),
        ("servicebus.bicep", "= '${namespace.name}.servicebus.windows.net'", "= namespace.properties.serviceBusEndpoint", "not sb-token.servicebus.windows.net"),
        ("worker.bicep", "value: '40'", "value: 'forty'", "seconds: no number"),
        ("worker.bicep", "terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 600", "may hang for 600 seconds"),
        ("api.bicep", "targetPort: probed ? 8000", "targetPort: probed ? 8080", "listens on 8000; its ingress sends to 8080"),
        ("api.bicep", "targetPort: probed ? 8000 : 80", "targetPort: 8000", "holds a placeholder, which listens on 80"),
        ("api.bicep", "path: '/healthz'", "path: '/health'", "is probed at"),
        ("main.bicep", "image: workerImage.outputs.image", "image: apiImage.outputs.image", "instead of the one that it runs"),
        ("main.bicep", "    exists: workerExists", "    exists: false && workerExists", "instead of the one that it runs"),
        ("main.bicep", "workerExists && onContainerApps", "workerExists", "worker is asked for its image, and is not there"),
        ("worker.bicep", "probes: probed ? [", "probes: true ? [", "probes fail on the placeholder"),
        ("worker.bicep", "memory: '1Gi'", "memory: '2Gi'", "0.5 CPU cannot be had with 2Gi"),
        ("worker.bicep", "workloadProfileName: 'Consumption'", "workloadProfileName: 'Dedicated'", "has the profiles"),
        # The consumer: its subscription, its containers, and no more than that.
        ("main.bicep", "    consumerPrincipalId: identities.outputs.consumerPrincipalId\n    kedaPrincipalId: identities.outputs.kedaPrincipalId\n    withKeda: !onContainerApps\n    operator", "    consumerPrincipalId: identities.outputs.subscriberPrincipalId\n    kedaPrincipalId: identities.outputs.kedaPrincipalId\n    withKeda: !onContainerApps\n    operator", "subscriber gets Service Bus Data Receiver on Microsoft.ServiceBus/namespaces/topics/subscriptions directory"),
        ("servicebus.bicep", "scope: directory\n  properties: {\n    principalId: consumer", "scope: consumer\n  properties: {\n    principalId: consumer", "consumer gets Service Bus Data Receiver on Microsoft.ServiceBus/namespaces/topics/subscriptions all"),
        ("servicebus.bicep", "scope: directory\n  properties: {\n    principalId: consumer", "scope: topic\n  properties: {\n    principalId: consumer", "consumer gets Service Bus Data Receiver on Microsoft.ServiceBus/namespaces/topics on"),
        ("servicebus.bicep", "'acdd72a7-3385-48ef-bd42-f606fba81ae7'", "'090c5cfd-751d-490a-894a-3ce6f1109419'", "keda lacks Reader"),
        ("servicebus.bicep", "= if (withKeda) {", "= {", "keda gets Reader on Microsoft.ServiceBus/namespaces/topics/subscriptions directory on containerapps"),
        ("servicebus.bicep", "name: directorySubscriptionName\n  properties: {\n    requiresSession: true", "name: directorySubscriptionName\n  properties: {\n    requiresSession: false", "requiresSession is False"),
        ("cosmos-roles.bicep", "          '${items}/replace'\n          '${items}/delete'", "          '${items}/replace'\n          '${items}/upsert'\n          '${items}/delete'", "consumer gets items/upsert on directory"),
        ("cosmos-roles.bicep", "'effects')\n  dependsOn: [\n    workerOnParked\n  ]\n", "'effects')\n", "may change at the same time"),
        ("cosmos-roles.bicep", "/colls/${directoryParkedContainerName}'", "/colls/${parkedContainerName}'", "consumer gets"),
        ("cosmos-roles.bicep", "'${account.id}/dbs/${databaseName}/colls/${directoryContainerName}'", "account.id", "consumer lacks executeQuery, items/create"),
        ("cosmos.bicep", "includedPaths: []\n        excludedPaths: [\n          {\n            path: '/*'", "includedPaths: []\n        excludedPaths: [\n          {\n            path: '/x/*'", "every path"),
        ("consumer.bicep", "'OUTBOX_SUBSCRIPTION'", "'OTHER'", "without OUTBOX_SUBSCRIPTION it does not start"),
        ("consumer.bicep", "'OUTBOX_PARKED_CONTAINER'", "'OUTBOX_LEASE_CONTAINER'", "OUTBOX_LEASE_CONTAINER is no setting of the consumer"),
        ("main.bicep", "dataContainerName: directoryContainerName", "dataContainerName: dataContainerName", "OUTBOX_COSMOS_CONTAINER of the consumer is data, not directory"),
        ("main.bicep", "parkedContainerName: directoryParkedContainerName\n    serviceBusName", "parkedContainerName: parkedContainerName\n    serviceBusName", "OUTBOX_PARKED_CONTAINER of the consumer is parked, not directory-parked"),
        ("main.bicep", "subscriptionName: directorySubscriptionName\n    applicationInsights", "subscriptionName: subscriptionName\n    applicationInsights", "OUTBOX_SUBSCRIPTION of the consumer is all, not directory"),
        ("main.bicep", "serviceBusName: serviceBus.outputs.name", "serviceBusName: serviceBus.outputs.fullyQualifiedNamespace", "the consumer scales by"),
        ("consumer.bicep", "identity: identityId\n              metadata", "identity: 'system'\n              metadata", "the consumer scales by"),
        ("consumer.bicep", "minReplicas: 2", "minReplicas: 0", "may run with fewer than two"),
        ("consumer.bicep", "terminationGracePeriodSeconds: 60", "terminationGracePeriodSeconds: 45", "is killed before it has given back"),
        ("consumer.bicep", "path: '/readyz'", "path: '/livez'", "is probed at"),
        ("consumer.bicep", "probes: probed ? [", "probes: true ? [", "probes fail on the placeholder of the consumer"),
        ("identities.bicep", "'outbox:outbox-consumer'", "'outbox:consumer'", "the consumer signs in from a cluster by"),
        ("main.bicep", "consumerExists && onContainerApps", "consumerExists", "consumer is asked for its image, and is not there"),
        ("consumer.bicep", "  name: 'consumer'\n", "  name: 'directory'\n", "asks for the logs of consumer, which is no app"),
        # Regions.
        ("cosmos.bicep", "failoverPriority: index + 1", "failoverPriority: 1", "the account is in"),
        ("cosmos.bicep", "], replicas)", "], [])", "the account is in"),
        ("cosmos.bicep", "automaticFailover && !empty(replicaLocations)", "true", "fails over by itself, or does not, unasked"),
        ("cosmos.bicep", "enableMultipleWriteLocations: false", "enableMultipleWriteLocations: true", "several regions write"),
        ("servicebus.bicep", "roleType: 'Secondary'", "roleType: 'Primary'", "the messages are in"),
        ("main.bicep", "replicaLocation: serviceBusReplicaLocation", "replicaLocation: location", "the messages are in"),
        # How many workers there are.
        ("worker.bicep", "minReplicas: 2", "minReplicas: 1", "the worker scales by"),
        ("worker.bicep", "maxReplicas: maxReplicas", "maxReplicas: 2", "the worker scales by"),
        ("worker.bicep", "type: 'cpu'", "type: 'memory'", "the worker scales by"),
        ("main.bicep", "maxReplicas: workerMaxReplicas", "maxReplicas: consumerMaxReplicas", "the worker scales by"),
        # Alerts.
        ("alerts.bicep", "emailAddress: email", "emailAddress: token", "has no receiver"),
        ("alerts.bicep", "reach: 'P2D'", "reach: '2D'", "by a query of 2D"),
        ("alerts.bicep", "skipQueryValidation: true", "skipQueryValidation: false", "a workspace that is still empty"),
        ("cosmos.bicep", "        enabled: true", "        enabled: false", "sends nothing by"),
        ("servicebus.bicep", "category: 'AllMetrics'", "category: 'Metrics'", "sends nothing by"),
        ("alerts.bicep", "aggregation: 'Average'\n    threshold: 0", "aggregation: 'Average'\n    threshold: 1000000", "the alert dead-letters asks"),
        ("alerts.bicep", "      '429'", "      '200'", "the alert cosmos-throttled asks"),
        ("alerts.bicep", "operator: 'GreaterThan'\n          threshold: alert.threshold", "operator: 'LessThan'\n          threshold: alert.threshold", "the alert dead-letters asks"),
        ("alerts.bicep", "target: serviceBusNamespaceId", "target: cosmosAccountId", "the alert dead-letters asks"),
        ("alerts.bicep", "windowSize: 'PT5M'", "windowSize: 'PT1M'", "looks at 1 minutes every 5"),
        ("alerts.bicep", "threshold: 0\n          dimensions", "threshold: 100\n          dimensions", "does not fire for each row"),
        ("alerts.bicep", "operator: 'GreaterThan'\n          threshold: 0", "operator: 'LessThan'\n          threshold: 0", "does not fire for each row"),
        ("alerts.bicep", "eachOf: 'alarm'", "eachOf: ''", "alert-alarms-token is split by []"),
        ("alerts.bicep", "eachOf: ''", "eachOf: 'keys'", "not by each None"),
        ("alerts.bicep", "              name: alert.eachOf\n              operator: 'Include'", "              name: alert.eachOf\n              operator: 'Exclude'", "alert-alarms-token is split by"),
        ("worker.bicep", "  name: 'worker'\n", "  name: 'outbox-worker'\n", "which is no app"),
        ("environment.bicep", "categoryGroup: 'allLogs'", "category: 'ContainerAppSystemLogs'", "ContainerAppConsoleLogs stays empty"),
        ("environment.bicep", "destination: 'azure-monitor'", "destination: 'log-analytics'", "sends its logs elsewhere"),
    ],
)  # fmt: skip
def test_a_planted_violation_is_found(file: str, old: str, new: str, said: str):
    found = [violation for found in _violations(file, old, new).values() for violation in found]
    assert any(said in violation for violation in found), found


@functools.cache
def _violations(file: str, old: str, new: str) -> dict[str, list[str]]:
    templates = planted(file, old, new)
    return {rule.__name__: list(rule(templates)) for rule in policy.POLICIES}


def test_every_policy_has_a_planted_violation():
    """
    A policy that nothing planted sets off may be one that nothing ever does.
    """
    marks = test_a_planted_violation_is_found.pytestmark  # type: ignore[attr-defined] # pytest puts it there
    cases = next(mark for mark in marks if mark.name == "parametrize").args[1]
    set_off = {
        name for file, old, new, _ in cases for name, found in _violations(file, old, new).items() if found
    }
    assert {rule.__name__ for rule in policy.POLICIES} == set_off
