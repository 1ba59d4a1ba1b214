// The resources for `cosmos-outbox verify`, separate from all others: a database and a topic of its own, and the rights of one principal
// on these only. They are rights of the data plane: the command creates no resources and reads no settings.
param cosmosAccountName string

@description('Id of the role that allows to read the account itself, which every SDK does first.')
param metadataReaderId string

@allowed([
  'autoscale'
  'serverless'
])
param capacityMode string

@minValue(1000)
param dataMaxThroughput int

param serviceBusName string

@description('Principal that runs the command; if it is empty, no rights are given.')
param principalId string
param principalType string

var name = 'verify'
var containerNames = [
  'verify-data'
  'verify-leases'
  'verify-parked'
]
// The default names for `--subscription`, which has sessions, and `--plain-subscription`, which has none.
var subscriptionNames = [
  name
  'verify-plain'
]
// The built-in roles of a sender and a receiver.
var topicRoles = empty(principalId) ? [] : [
  '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'
  '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'
]

resource account 'Microsoft.DocumentDB/databaseAccounts@2024-11-15' existing = {
  name: cosmosAccountName
}

resource database 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases@2024-11-15' = {
  parent: account
  name: name
  properties: {
    resource: {
      id: name
    }
  }
}

resource containers 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers@2024-11-15' = [for container in containerNames: {
  parent: database
  name: container
  properties: {
    resource: {
      id: container
      partitionKey: {
        paths: [
          container == 'verify-leases' ? '/id' : '/partitionKey'
        ]
        kind: 'Hash'
        version: 2
      }
      // -1 lets the time to live take effect that each run gives to its documents.
      defaultTtl: -1
    }
    options: capacityMode == 'serverless' ? {} : {
      autoscaleSettings: {
        maxThroughput: container == 'verify-data' ? dataMaxThroughput : 1000
      }
    }
  }
}]

resource onAccount 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = if (!empty(principalId)) {
  parent: account
  // An operator's assignment of the same role has the same name, because only one such assignment may exist.
  name: guid(account.id, principalId, 'metadata')
  properties: {
    principalId: principalId
    roleDefinitionId: metadataReaderId
    scope: account.id
  }
}

resource onDatabase 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = if (!empty(principalId)) {
  parent: account
  name: guid(account.id, principalId, name)
  dependsOn: [
    onAccount
    database
  ]
  properties: {
    principalId: principalId
    // Cosmos DB Built-in Data Contributor
    roleDefinitionId: '${account.id}/sqlRoleDefinitions/00000000-0000-0000-0000-000000000002'
    scope: '${account.id}/dbs/${name}'
  }
}

resource namespace 'Microsoft.ServiceBus/namespaces@2026-01-01' existing = {
  name: serviceBusName
}

resource topic 'Microsoft.ServiceBus/namespaces/topics@2024-01-01' = {
  parent: namespace
  name: name
  properties: {
    requiresDuplicateDetection: true
    enablePartitioning: false
    supportOrdering: true
    duplicateDetectionHistoryTimeWindow: 'PT10M'
    enableBatchedOperations: true
    maxSizeInMegabytes: 1024
  }
}

// The lock duration is short, because the command waits until locks end.
resource subscriptions 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2024-01-01' = [for subscription in subscriptionNames: {
  parent: topic
  name: subscription
  properties: {
    requiresSession: subscription == name
    lockDuration: 'PT10S'
    maxDeliveryCount: 10
    enableBatchedOperations: true
  }
}]

resource onTopic 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for role in topicRoles: {
  name: guid(topic.id, principalId, role)
  scope: topic
  properties: {
    principalId: principalId
    principalType: principalType
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', role)
  }
}]

output command string = 'OUTBOX_COSMOS_ENDPOINT=${account.properties.documentEndpoint} OUTBOX_SERVICEBUS_NAMESPACE=${serviceBusName}.servicebus.windows.net OUTBOX_COSMOS_DATABASE=${name} OUTBOX_COSMOS_CONTAINER=verify-data OUTBOX_LEASE_CONTAINER=verify-leases OUTBOX_PARKED_CONTAINER=verify-parked OUTBOX_TOPIC=${name} cosmos-outbox verify'
