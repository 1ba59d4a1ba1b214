// The Service Bus namespace, the topic, which drops repeated messages, and subscriptions with sessions: one for the consumer that keeps
// the company directory, and one for each further reader.
param location string
param tags object

@minLength(6)
@maxLength(50)
param name string

@description('Locks the namespace, so that nothing in it can be deleted. Messages can still be deleted.')
param locked bool

@allowed([
  'Standard'
  'Premium'
])
param sku string

@description('Messaging units; Premium only.')
@minValue(1)
param capacity int

@description('A second region; Premium only.')
param replicaLocation string
param replicaLagSeconds int

@allowed([
  'Enabled'
  'Disabled'
])
param publicNetworkAccess string
param topicName string
param topicMaxSizeInMegabytes int
param senderPrincipalId string
param directorySubscriptionName string
param consumerPrincipalId string

@description('Further subscriptions, each with the program that reads it: {name, principalId}.')
param furtherReaders array
param kedaPrincipalId string

@description('Whether KEDA computes from the waiting messages how many consumers are needed; on AKS only.')
param withKeda bool
param operatorPrincipalIds array
param operatorPrincipalType string
param workspaceId string

var senderRole = '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'
var receiverRole = '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'
// The built-in role Reader: it may read which entities exist, but no messages.
var readerRole = 'acdd72a7-3385-48ef-bd42-f606fba81ae7'
var subscription = {
  requiresSession: true
  // A consumer trusts a session lock for at most a minute.
  lockDuration: 'PT1M'
  // Crashes and lost locks count as deliveries. The attempts of a handler do not, because all of them belong to one delivery.
  maxDeliveryCount: 10
  deadLetteringOnMessageExpiration: true
  deadLetteringOnFilterEvaluationExceptions: true
  defaultMessageTimeToLive: 'P14D'
  enableBatchedOperations: true
}

resource namespace 'Microsoft.ServiceBus/namespaces@2026-01-01' = {
  name: name
  location: location
  tags: tags
  sku: {
    name: sku
    tier: sku
    capacity: sku == 'Premium' ? capacity : null
  }
  properties: {
    disableLocalAuth: true
    minimumTlsVersion: '1.2'
    publicNetworkAccess: publicNetworkAccess
    geoDataReplication: empty(replicaLocation) ? null : {
      maxReplicationLagDurationInSeconds: replicaLagSeconds
      locations: [
        {
          locationName: location
          roleType: 'Primary'
        }
        {
          locationName: replicaLocation
          roleType: 'Secondary'
        }
      ]
    }
  }
}

resource topic 'Microsoft.ServiceBus/namespaces/topics@2024-01-01' = {
  parent: namespace
  name: topicName
  properties: {
    // These three properties cannot be changed later. Another choice needs a new topic.
    requiresDuplicateDetection: true
    enablePartitioning: false
    supportOrdering: true
    // The window is longer than any outage after which a worker sends again from an old checkpoint.
    duplicateDetectionHistoryTimeWindow: 'P1D'
    enableBatchedOperations: true
    defaultMessageTimeToLive: 'P14D'
    maxSizeInMegabytes: topicMaxSizeInMegabytes
  }
}

resource directory 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2024-01-01' = {
  parent: topic
  name: directorySubscriptionName
  properties: subscription
}

// Each subscription needs a program that reads it. Otherwise its messages would wait, expire into a dead-letter queue that nothing
// empties, and fill the topic, which then accepts no message for any reader.
resource further 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2024-01-01' = [for reader in furtherReaders: {
  parent: topic
  name: reader.name
  properties: subscription
}]

resource sender 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(topic.id, senderPrincipalId, senderRole)
  scope: topic
  properties: {
    principalId: senderPrincipalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', senderRole)
  }
}

// Operators may send, because the command line sends replayed events, and events of released keys, as the operator who runs it.
resource operatorSenders 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for operatorPrincipalId in operatorPrincipalIds: {
  name: guid(topic.id, operatorPrincipalId, senderRole)
  scope: topic
  properties: {
    principalId: operatorPrincipalId
    principalType: operatorPrincipalType
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', senderRole)
  }
}]

resource furtherReceivers 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for (reader, index) in furtherReaders: {
  name: guid(topic.id, reader.name, reader.principalId, receiverRole)
  scope: further[index]
  properties: {
    principalId: reader.principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', receiverRole)
  }
}]

resource directoryReceiver 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(directory.id, consumerPrincipalId, receiverRole)
  scope: directory
  properties: {
    principalId: consumerPrincipalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', receiverRole)
  }
}

resource directoryCounter 'Microsoft.Authorization/roleAssignments@2022-04-01' = if (withKeda) {
  name: guid(directory.id, kedaPrincipalId, readerRole)
  scope: directory
  properties: {
    principalId: kedaPrincipalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', readerRole)
  }
}

resource lock 'Microsoft.Authorization/locks@2020-05-01' = if (locked) {
  scope: namespace
  name: 'outbox'
  properties: {
    level: 'CanNotDelete'
    notes: 'Holds messages that no reader has taken yet. Take this lock away only to delete it for good.'
  }
}

resource diagnostics 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  scope: namespace
  name: 'workspace'
  properties: {
    workspaceId: workspaceId
    logs: [
      {
        category: 'OperationalLogs'
        enabled: true
      }
    ]
    metrics: [
      {
        category: 'AllMetrics'
        enabled: true
      }
    ]
  }
}

output id string = namespace.id
output name string = namespace.name
output fullyQualifiedNamespace string = '${namespace.name}.servicebus.windows.net'
