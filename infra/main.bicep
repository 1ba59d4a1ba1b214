// Everything the outbox needs on Azure, for `azd provision` or `az deployment sub create`.
// Written without compiler-new syntax (union types, lambdas, spread), so that checkov's parser reads it too.
targetScope = 'subscription'

@description('Names the environment; part of every generated name.')
@minLength(1)
@maxLength(40)
param environmentName string

@description('Region of all resources.')
@minLength(1)
param location string

@description('Tags of all resources, beside the one by which azd finds them.')
param tags object = {}

@description('Names in place of those of defaultNames, by the same keys; a key that is not there is refused.')
param names object = {}

@description('Locks that keep account and namespace, with all that is in them, from being deleted; who deploys needs the right to set them.')
param deletionLocks bool = true

@description('Where the worker runs. On AKS the cluster is yours: see infra/kubernetes.')
@allowed([
  'containerapps'
  'aks'
])
param workerPlatform string = 'containerapps'

@description('OIDC issuer of the AKS cluster whose pods sign in as the worker and as KEDA; needed for aks only.')
param aksOidcIssuerUrl string = ''

@description('Namespace and name of the service account of KEDA\'s operator: in kube-system where KEDA is AKS\'s add-on.')
param kedaServiceAccount string = 'keda:keda-operator'

@description('Serverless bills by request and suits small loads; autoscale has no ceiling of 5,000 RU/s.')
@allowed([
  'autoscale'
  'serverless'
])
param capacityMode string = 'serverless'

@description('Autoscale ceiling of the data container, in RU/s; a multiple of 1,000. By default that of a serverless container.')
@minValue(1000)
param dataMaxThroughput int = 5000

@description('Puts Cosmos DB and Service Bus behind private endpoints and closes their public ones.')
param privateNetworking bool = false

@description('Where the private network begins: it has the addresses PREFIX.0.0/16, which no network peered with it may use.')
param networkPrefix string = '10.64'

@description('Ids of networks that you peer with it: the cluster\'s, the operators\'. Names resolve to the endpoints there too.')
param peeredNetworkIds array = []

@description('Addresses in those networks whose clients may use the endpoints, such as 10.224.0.0/16.')
param peeredAddressPrefixes array = []

@description('Private endpoints need Premium.')
@allowed([
  'Standard'
  'Premium'
])
param serviceBusSku string = privateNetworking ? 'Premium' : 'Standard'

@description('Messaging units of Premium, which are what it costs.')
@minValue(1)
param serviceBusMessagingUnits int = 1

@description('A region that holds a copy of topics and messages, for you to promote. Premium only.')
param serviceBusReplicaLocation string = ''

@description('How far the copy may lag behind before sends are throttled; with 0 each send waits for both regions.')
@minValue(0)
param serviceBusReplicaLagSeconds int = 300

@description('Further regions that hold the documents, in the order in which they take over. Not with serverless.')
param cosmosReplicaLocations array = []

@description('Cosmos DB goes over to the next of these regions by itself when the first one fails.')
param cosmosAutomaticFailover bool = true

@description('Spreads Cosmos DB over availability zones, where the region has them, and with privateNetworking Container Apps.')
param zoneRedundant bool = false

param databaseName string = 'contacts'
param dataContainerName string = 'data'
param leaseContainerName string = 'leases'
param parkedContainerName string = 'parked'
param topicName string = 'events'

@description('When it is full all sending ends; with Premium up to 81,920.')
@minValue(1024)
@maxValue(81920)
param topicMaxSizeInMegabytes int = 5120

@description('Subscription of the consumer, which keeps the company directory.')
param directorySubscriptionName string = 'directory'

@description('Further subscriptions, each with its reader: {name, principalId}. One that no program reads fills the topic.')
param furtherReaders array = []

param directoryContainerName string = 'directory'

@description('Of the consumer alone: a program that may write to the workers\' container could undo what they hold.')
param directoryParkedContainerName string = 'directory-parked'

@description('Workers with the same name share the leases.')
param processorName string = 'outbox'

@description('Actions whose events the worker deletes once they are sent; * for all, empty for none.')
param deleteAfterPublish string = ''

@description('The most messages a second that each worker sends, so that consumers get their part of the namespace; empty for no ceiling.')
param sendRate string = ''

@description('Of the worker\'s reads of the change feed: low leaves the request units to commits. The account needs priority-based execution.')
@allowed([
  ''
  'high'
  'low'
])
param readPriority string = ''

@description('Throughput bucket of the data container that these reads are counted in; 0 for none.')
@minValue(0)
@maxValue(5)
param throughputBucket int = 0

@description('Whether the API\'s app is there already, whose image is to stay. azd knows.')
param apiExists bool = false

@description('Whether the worker\'s app is there already, whose image is to stay. azd knows.')
param workerExists bool = false

@description('Whether the consumer\'s app is there already, whose image is to stay. azd knows.')
param consumerExists bool = false

@description('Serves the API on the internet. The example has no authentication of its own: put some in front first.')
param apiExternal bool = false

@description('The most workers that busy cores can ask for; there are two at least. More than there are leases only stand by.')
@minValue(2)
param workerMaxReplicas int = 8

@description('The most consumers that the waiting messages can ask for; there are two at least.')
@minValue(2)
param consumerMaxReplicas int = 8

@description('Receives the alerts; without it they only show in the portal.')
param alertEmail string = ''

@description('An alert is raised where more messages than these wait in the topic.')
@minValue(1)
param backlogAlertMessages int = 10000

@description('What Log Analytics takes in a day, in GB; then it takes nothing more until the next one, and alerts on logs are blind. -1 for all.')
@minValue(-1)
param logDailyCapGb int = 5

@description('Logs what each partition key of Cosmos DB uses, by name: for as long as you look for a hot one.')
param hotPartitionLogs bool = false

@description('Object ids of who may run the command line: it sends again and releases parked keys.')
param operatorPrincipalIds array = []

@description('Object ids of who may also move positions, by leases reset: best a group that one joins for an hour.')
param leaseOperatorPrincipalIds array = []

@allowed([
  'Group'
  'ServicePrincipal'
  'User'
])
param operatorPrincipalType string = 'Group'

@description('Adds what `cosmos-outbox verify` works on, apart from all else, and the rights of who runs it.')
param verify bool = false

@description('Object id of who runs it. azd knows who deploys.')
param verifyPrincipalId string = ''

@allowed([
  'Group'
  'ServicePrincipal'
  'User'
])
param verifyPrincipalType string = 'User'

var token = toLower(uniqueString(subscription().id, environmentName, location))
// By the abbreviations of Microsoft's Cloud Adoption Framework.
var defaultNames = {
  resourceGroup: 'rg-${environmentName}'
  cosmosAccount: 'cosmos-${token}'
  serviceBusNamespace: 'sbns-${token}'
  registry: 'cr${token}'
  logWorkspace: 'log-${token}'
  applicationInsights: 'appi-${token}'
  actionGroup: 'ag-${token}'
  appsEnvironment: 'cae-${token}'
  api: 'ca-api'
  worker: 'ca-worker'
  consumer: 'ca-consumer'
  apiIdentity: 'id-api-${token}'
  workerIdentity: 'id-worker-${token}'
  consumerIdentity: 'id-consumer-${token}'
  kedaIdentity: 'id-keda-${token}'
  network: 'vnet-${token}'
  endpointsSecurityGroup: 'nsg-endpoints-${token}'
  cosmosEndpoint: 'pep-cosmos-${token}'
  serviceBusEndpoint: 'pep-servicebus-${token}'
}
var asked = union(defaultNames, names)
// No such property: the deployment ends with this sentence and the keys that there are. (checkov's parser does not know fail().)
var named = length(asked) == length(defaultNames) ? asked : asked['names has a key that defaultNames of main.bicep does not have']
var allTags = union(tags, {
  'azd-env-name': environmentName
})
var onContainerApps = workerPlatform == 'containerapps'

resource group 'Microsoft.Resources/resourceGroups@2024-11-01' = {
  name: named.resourceGroup
  location: location
  tags: allTags
}

module identities 'modules/identities.bicep' = {
  name: 'identities'
  scope: group
  params: {
    location: location
    tags: allTags
    names: named
    aksOidcIssuerUrl: onContainerApps ? '' : aksOidcIssuerUrl
    kedaServiceAccount: kedaServiceAccount
  }
}

module monitoring 'modules/monitoring.bicep' = {
  name: 'monitoring'
  scope: group
  params: {
    location: location
    tags: allTags
    workspaceName: named.logWorkspace
    applicationInsightsName: named.applicationInsights
    dailyCapGb: logDailyCapGb
    publisherPrincipalIds: [
      identities.outputs.apiPrincipalId
      identities.outputs.workerPrincipalId
      identities.outputs.consumerPrincipalId
    ]
  }
}

module network 'modules/network.bicep' = if (privateNetworking) {
  name: 'network'
  scope: group
  params: {
    location: location
    tags: allTags
    name: named.network
    securityGroupName: named.endpointsSecurityGroup
    prefix: networkPrefix
    peeredAddressPrefixes: peeredAddressPrefixes
  }
}

module cosmos 'modules/cosmos.bicep' = {
  name: 'cosmos'
  scope: group
  params: {
    location: location
    tags: allTags
    name: named.cosmosAccount
    locked: deletionLocks
    hotPartitionLogs: hotPartitionLogs
    capacityMode: capacityMode
    dataMaxThroughput: dataMaxThroughput
    zoneRedundant: zoneRedundant
    replicaLocations: cosmosReplicaLocations
    automaticFailover: cosmosAutomaticFailover
    publicNetworkAccess: privateNetworking ? 'Disabled' : 'Enabled'
    databaseName: databaseName
    dataContainerName: dataContainerName
    leaseContainerName: leaseContainerName
    parkedContainerName: parkedContainerName
    directoryContainerName: directoryContainerName
    directoryParkedContainerName: directoryParkedContainerName
    workspaceId: monitoring.outputs.workspaceId
  }
}

module cosmosRoles 'modules/cosmos-roles.bicep' = {
  name: 'cosmos-roles'
  scope: group
  params: {
    accountName: cosmos.outputs.name
    databaseName: databaseName
    dataContainerName: dataContainerName
    leaseContainerName: leaseContainerName
    parkedContainerName: parkedContainerName
    directoryContainerName: directoryContainerName
    directoryParkedContainerName: directoryParkedContainerName
    apiPrincipalId: identities.outputs.apiPrincipalId
    workerPrincipalId: identities.outputs.workerPrincipalId
    consumerPrincipalId: identities.outputs.consumerPrincipalId
    kedaPrincipalId: identities.outputs.kedaPrincipalId
    withKeda: !onContainerApps
    workerDeletes: !empty(deleteAfterPublish)
    operatorPrincipalIds: operatorPrincipalIds
    leaseOperatorPrincipalIds: leaseOperatorPrincipalIds
  }
}

module serviceBus 'modules/servicebus.bicep' = {
  name: 'servicebus'
  scope: group
  params: {
    location: location
    tags: allTags
    name: named.serviceBusNamespace
    locked: deletionLocks
    sku: serviceBusSku
    capacity: serviceBusMessagingUnits
    replicaLocation: serviceBusReplicaLocation
    replicaLagSeconds: serviceBusReplicaLagSeconds
    publicNetworkAccess: privateNetworking ? 'Disabled' : 'Enabled'
    topicName: topicName
    topicMaxSizeInMegabytes: topicMaxSizeInMegabytes
    furtherReaders: furtherReaders
    senderPrincipalId: identities.outputs.workerPrincipalId
    directorySubscriptionName: directorySubscriptionName
    consumerPrincipalId: identities.outputs.consumerPrincipalId
    kedaPrincipalId: identities.outputs.kedaPrincipalId
    withKeda: !onContainerApps
    operatorPrincipalIds: operatorPrincipalIds
    operatorPrincipalType: operatorPrincipalType
    workspaceId: monitoring.outputs.workspaceId
  }
}

module verification 'modules/verify.bicep' = if (verify) {
  name: 'verify'
  scope: group
  params: {
    cosmosAccountName: cosmos.outputs.name
    metadataReaderId: cosmosRoles.outputs.metadataReaderId
    capacityMode: capacityMode
    dataMaxThroughput: dataMaxThroughput
    serviceBusName: serviceBus.outputs.name
    principalId: verifyPrincipalId
    principalType: verifyPrincipalType
  }
}

module cosmosEndpoint 'modules/private-endpoint.bicep' = if (privateNetworking) {
  name: 'cosmos-endpoint'
  scope: group
  // The account takes one change at a time.
  dependsOn: [
    cosmosRoles
    verification
  ]
  params: {
    location: location
    tags: allTags
    name: named.cosmosEndpoint
    targetId: cosmos.outputs.id
    groupId: 'Sql'
    zoneName: 'privatelink.documents.azure.com'
    networkIds: privateNetworking ? union([network!.outputs.networkId], peeredNetworkIds) : []
    subnetId: privateNetworking ? network!.outputs.endpointsSubnetId : ''
  }
}

module serviceBusEndpoint 'modules/private-endpoint.bicep' = if (privateNetworking) {
  name: 'servicebus-endpoint'
  scope: group
  params: {
    location: location
    tags: allTags
    name: named.serviceBusEndpoint
    targetId: serviceBus.outputs.id
    groupId: 'namespace'
    zoneName: 'privatelink.servicebus.windows.net'
    networkIds: privateNetworking ? union([network!.outputs.networkId], peeredNetworkIds) : []
    subnetId: privateNetworking ? network!.outputs.endpointsSubnetId : ''
  }
}

module registry 'modules/registry.bicep' = {
  name: 'registry'
  scope: group
  params: {
    location: location
    tags: allTags
    name: named.registry
    pullPrincipalIds: [
      identities.outputs.apiPrincipalId
      identities.outputs.workerPrincipalId
      identities.outputs.consumerPrincipalId
    ]
  }
}

module appsEnvironment 'modules/environment.bicep' = {
  name: 'environment'
  scope: group
  params: {
    location: location
    tags: allTags
    name: named.appsEnvironment
    workspaceId: monitoring.outputs.workspaceId
    subnetId: privateNetworking ? network!.outputs.appsSubnetId : ''
    internal: privateNetworking && !apiExternal
    zoneRedundant: zoneRedundant && privateNetworking
  }
}

module apiImage 'modules/deployed-image.bicep' = {
  name: 'api-image'
  scope: group
  params: {
    name: named.api
    exists: apiExists
  }
}

module workerImage 'modules/deployed-image.bicep' = {
  name: 'worker-image'
  scope: group
  params: {
    name: named.worker
    // There is none elsewhere, whatever azd says.
    exists: workerExists && onContainerApps
  }
}

module consumerImage 'modules/deployed-image.bicep' = {
  name: 'consumer-image'
  scope: group
  params: {
    name: named.consumer
    exists: consumerExists && onContainerApps
  }
}

module api 'modules/api.bicep' = {
  name: 'api'
  scope: group
  dependsOn: [
    cosmosRoles
    cosmosEndpoint
  ]
  params: {
    location: location
    tags: allTags
    name: named.api
    environmentId: appsEnvironment.outputs.id
    identityId: identities.outputs.apiId
    identityClientId: identities.outputs.apiClientId
    registryServer: registry.outputs.loginServer
    image: apiImage.outputs.image
    probed: apiImage.outputs.deployed
    external: apiExternal
    cosmosEndpoint: cosmos.outputs.endpoint
    databaseName: databaseName
    dataContainerName: dataContainerName
    applicationInsightsName: monitoring.outputs.applicationInsightsName
  }
}

module worker 'modules/worker.bicep' = if (onContainerApps) {
  name: 'worker'
  scope: group
  dependsOn: [
    cosmosRoles
    cosmosEndpoint
    serviceBusEndpoint
  ]
  params: {
    location: location
    tags: allTags
    name: named.worker
    environmentId: appsEnvironment.outputs.id
    identityId: identities.outputs.workerId
    identityClientId: identities.outputs.workerClientId
    registryServer: registry.outputs.loginServer
    image: workerImage.outputs.image
    probed: workerImage.outputs.deployed
    maxReplicas: workerMaxReplicas
    cosmosEndpoint: cosmos.outputs.endpoint
    databaseName: databaseName
    dataContainerName: dataContainerName
    leaseContainerName: leaseContainerName
    parkedContainerName: parkedContainerName
    processorName: processorName
    deleteAfterPublish: deleteAfterPublish
    sendRate: sendRate
    readPriority: readPriority
    throughputBucket: throughputBucket
    serviceBusNamespace: serviceBus.outputs.fullyQualifiedNamespace
    topicName: topicName
    applicationInsightsName: monitoring.outputs.applicationInsightsName
  }
}

module consumer 'modules/consumer.bicep' = if (onContainerApps) {
  name: 'consumer'
  scope: group
  dependsOn: [
    cosmosRoles
    cosmosEndpoint
    serviceBusEndpoint
  ]
  params: {
    location: location
    tags: allTags
    name: named.consumer
    environmentId: appsEnvironment.outputs.id
    identityId: identities.outputs.consumerId
    identityClientId: identities.outputs.consumerClientId
    registryServer: registry.outputs.loginServer
    image: consumerImage.outputs.image
    probed: consumerImage.outputs.deployed
    maxReplicas: consumerMaxReplicas
    cosmosEndpoint: cosmos.outputs.endpoint
    databaseName: databaseName
    dataContainerName: directoryContainerName
    parkedContainerName: directoryParkedContainerName
    serviceBusName: serviceBus.outputs.name
    serviceBusNamespace: serviceBus.outputs.fullyQualifiedNamespace
    topicName: topicName
    subscriptionName: directorySubscriptionName
    applicationInsightsName: monitoring.outputs.applicationInsightsName
  }
}

module alerts 'modules/alerts.bicep' = {
  name: 'alerts'
  scope: group
  params: {
    location: location
    tags: allTags
    token: token
    actionGroupName: named.actionGroup
    email: alertEmail
    topicMaxSizeInMegabytes: topicMaxSizeInMegabytes
    backlogMessages: backlogAlertMessages
    workerName: named.worker
    consumerName: named.consumer
    cosmosAccountId: cosmos.outputs.id
    serviceBusNamespaceId: serviceBus.outputs.id
    workspaceId: monitoring.outputs.workspaceId
    watchApps: onContainerApps
  }
}

// azd keeps upper-case outputs as variables of its environment; none of them is a secret.
output AZURE_LOCATION string = location
output AZURE_RESOURCE_GROUP string = group.name
output AZURE_CONTAINER_REGISTRY_ENDPOINT string = registry.outputs.loginServer
output OUTBOX_COSMOS_ENDPOINT string = cosmos.outputs.endpoint
output OUTBOX_SERVICEBUS_NAMESPACE string = serviceBus.outputs.fullyQualifiedNamespace
output APPLICATIONINSIGHTS_CONNECTION_STRING string = monitoring.outputs.telemetryDestination
output API_URL string = api.outputs.url
// The hook after a deployment reads it, and provisions again.
output PLACEHOLDER_LEFT bool = contains(union([
  apiImage.outputs.deployed
], onContainerApps ? [
  workerImage.outputs.deployed
  consumerImage.outputs.deployed
] : []), false)
output WORKER_CLIENT_ID string = identities.outputs.workerClientId
output CONSUMER_CLIENT_ID string = identities.outputs.consumerClientId
output KEDA_CLIENT_ID string = identities.outputs.kedaClientId
// Asks account and namespace whether they answer as the library believes; with `verify`.
output VERIFY_COMMAND string = verify ? verification!.outputs.command : ''
