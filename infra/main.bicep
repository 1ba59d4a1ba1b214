// Everything that the outbox needs on Azure, for `azd provision` or `az deployment sub create`.
// It uses no recent syntax of Bicep (union types, lambdas, spread), because checkov's parser cannot read that.
targetScope = 'subscription'

@description('Name of the environment, which is a part of every generated name.')
@minLength(1)
@maxLength(40)
param environmentName string

@description('Region of all resources.')
@minLength(1)
param location string

@description('Tags of all resources, in addition to the tag by which azd finds them.')
param tags object = {}

@description('Names of resources that replace those in defaultNames, by the same keys. An unknown key is refused.')
param names object = {}

@description('Protects the account and the namespace, with everything in them, from deletion. The user who deploys needs the right to set locks.')
param deletionLocks bool = true

@description('Where the worker runs. For AKS you bring your own cluster: see infra/kubernetes.')
@allowed([
  'containerapps'
  'aks'
])
param workerPlatform string = 'containerapps'

@description('OIDC issuer of the AKS cluster whose pods sign in as the worker and as KEDA; only needed for aks.')
param aksOidcIssuerUrl string = ''

@description('Namespace and name of the service account of KEDA\'s operator. The namespace is kube-system if KEDA is the add-on of AKS.')
param kedaServiceAccount string = 'keda:keda-operator'

@description('Serverless bills by request, suits small loads, and is limited to 5,000 RU/s; autoscale is not limited to that.')
@allowed([
  'autoscale'
  'serverless'
])
param capacityMode string = 'serverless'

@description('Highest autoscale throughput of the data container, in RU/s; a multiple of 1,000. The default is the limit of a serverless container.')
@minValue(1000)
param dataMaxThroughput int = 5000

@description('Puts Cosmos DB and Service Bus behind private endpoints, and closes their public endpoints.')
param privateNetworking bool = false

@description('Prefix of the private network. Its addresses are PREFIX.0.0/16, which no peered network may use.')
param networkPrefix string = '10.64'

@description('Ids of networks that you peer with the private network, such as that of the cluster or of operators. There, names also resolve to the endpoints.')
param peeredNetworkIds array = []

@description('Addresses in the peered networks whose clients may use the endpoints, such as 10.224.0.0/16.')
param peeredAddressPrefixes array = []

@description('Tier of the Service Bus namespace. Private endpoints need Premium.')
@allowed([
  'Standard'
  'Premium'
])
param serviceBusSku string = privateNetworking ? 'Premium' : 'Standard'

@description('Messaging units of a Premium namespace, by which it is billed.')
@minValue(1)
param serviceBusMessagingUnits int = 1

@description('A second region with a copy of topics and messages, which you can promote if the first region fails. Premium only.')
param serviceBusReplicaLocation string = ''

@description('Seconds by which the copy may lag before sends are throttled. With 0, each send waits for both regions.')
@minValue(0)
param serviceBusReplicaLagSeconds int = 300

@description('Further regions of Cosmos DB, in the order in which they replace a failed region. Not with serverless.')
param cosmosReplicaLocations array = []

@description('Lets Cosmos DB switch to the next of these regions by itself when the first one fails.')
param cosmosAutomaticFailover bool = true

@description('Spreads Cosmos DB, and with privateNetworking also Container Apps, over availability zones if the region has them.')
param zoneRedundant bool = false

param databaseName string = 'contacts'
param dataContainerName string = 'data'
param leaseContainerName string = 'leases'
param parkedContainerName string = 'parked'
param topicName string = 'events'

@description('Size of the topic. When the topic is full, nothing more can be sent. Premium allows up to 81,920.')
@minValue(1024)
@maxValue(81920)
param topicMaxSizeInMegabytes int = 5120

@description('Name of the subscription of the consumer that keeps the company directory.')
param directorySubscriptionName string = 'directory'

@description('Further subscriptions, each with its reader: {name, principalId}. One that no program reads fills the topic.')
param furtherReaders array = []

param directoryContainerName string = 'directory'

@description('Container for the keys that the consumer has parked. It is not the workers\' container, where the consumer could undo what workers hold.')
param directoryParkedContainerName string = 'directory-parked'

@description('Workers with the same name share the leases.')
param processorName string = 'outbox'

@description('Actions whose events the worker deletes once they are sent; * for all, empty for none.')
param deleteAfterPublish string = ''

@description('The most messages a second that each worker sends, so that consumers get their share of the namespace; empty for no limit.')
param sendRate string = ''

@description('Priority of the worker\'s reads of the change feed. With low, commits get the request units first. The account needs priority-based execution.')
@allowed([
  ''
  'high'
  'low'
])
param readPriority string = ''

@description('Throughput bucket of the data container in which the worker\'s reads are counted; 0 for none.')
@minValue(0)
@maxValue(5)
param throughputBucket int = 0

@description('Whether the API\'s app exists already, so that it keeps its image. azd sets this.')
param apiExists bool = false

@description('Whether the worker\'s app exists already, so that it keeps its image. azd sets this.')
param workerExists bool = false

@description('Whether the consumer\'s app exists already, so that it keeps its image. azd sets this.')
param consumerExists bool = false

@description('Serves the API on the internet. The example has no authentication, so put one in front of it first.')
param apiExternal bool = false

@description('The largest number of workers when their cores are busy; the least is two. Workers without a lease only wait.')
@minValue(2)
param workerMaxReplicas int = 8

@description('The largest number of consumers when many messages wait; the least is two.')
@minValue(2)
param consumerMaxReplicas int = 8

@description('Address to which alerts are sent. Without an address, they are only shown in the portal.')
param alertEmail string = ''

@description('An alert is raised if more messages than this wait in the topic.')
@minValue(1)
param backlogAlertMessages int = 10000

@description('Most data that Log Analytics accepts in a day, in GB; -1 for no limit. After that, alerts on logs see nothing until the next day.')
@minValue(-1)
param logDailyCapGb int = 5

@description('Logs what each partition key of Cosmos DB uses, with the key itself. Use it only while you look for a hot partition.')
param hotPartitionLogs bool = false

@description('Object ids of the operators who may run the command line, which sends events again and releases parked keys.')
param operatorPrincipalIds array = []

@description('Object ids of the operators who may also move positions, by leases reset; best a group that an operator joins for an hour.')
param leaseOperatorPrincipalIds array = []

@allowed([
  'Group'
  'ServicePrincipal'
  'User'
])
param operatorPrincipalType string = 'Group'

@description('Adds the resources for `cosmos-outbox verify`, separate from all others, and the rights of the user who runs it.')
param verify bool = false

@description('Object id of the user who runs `cosmos-outbox verify`. azd sets it to the user who deploys.')
param verifyPrincipalId string = ''

@allowed([
  'Group'
  'ServicePrincipal'
  'User'
])
param verifyPrincipalType string = 'User'

var token = toLower(uniqueString(subscription().id, environmentName, location))
// The prefixes are the abbreviations of Microsoft's Cloud Adoption Framework.
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
// If a key is unknown, the property below does not exist, so the deployment fails with its name as the error and lists the known keys.
// (checkov's parser does not know fail().)
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
  // The account accepts only one change at a time, so this waits for the others.
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
    // The worker has an app only on Container Apps, even if azd says that it exists.
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

// azd keeps outputs with upper-case names as variables of its environment. None of them is a secret.
output AZURE_LOCATION string = location
output AZURE_RESOURCE_GROUP string = group.name
output AZURE_CONTAINER_REGISTRY_ENDPOINT string = registry.outputs.loginServer
output OUTBOX_COSMOS_ENDPOINT string = cosmos.outputs.endpoint
output OUTBOX_SERVICEBUS_NAMESPACE string = serviceBus.outputs.fullyQualifiedNamespace
output APPLICATIONINSIGHTS_CONNECTION_STRING string = monitoring.outputs.telemetryDestination
output API_URL string = api.outputs.url
// The hook after `azd deploy` reads this output. If it is true, the hook provisions again.
output PLACEHOLDER_LEFT bool = contains(union([
  apiImage.outputs.deployed
], onContainerApps ? [
  workerImage.outputs.deployed
  consumerImage.outputs.deployed
] : []), false)
output WORKER_CLIENT_ID string = identities.outputs.workerClientId
output CONSUMER_CLIENT_ID string = identities.outputs.consumerClientId
output KEDA_CLIENT_ID string = identities.outputs.kedaClientId
// The command that checks whether account and namespace answer as the library expects; empty without `verify`.
output VERIFY_COMMAND string = verify ? verification!.outputs.command : ''
