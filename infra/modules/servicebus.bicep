// The namespace, the topic that drops repeated messages, and two subscriptions that keep each session's order: the
// subscriber's, and the one of the consumer that keeps the company directory.
param location string
param tags object

@description('Thirteen characters, as uniqueString makes them.')
@minLength(13)
param token string

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
param subscriptionName string
param senderPrincipalId string
param receiverPrincipalId string
param directorySubscriptionName string
param consumerPrincipalId string
param kedaPrincipalId string

@description('KEDA computes from the waiting messages how many consumers are needed; AKS only.')
param withKeda bool
param operatorPrincipalIds array
param operatorPrincipalType string
param workspaceId string

var senderRole = '69a216fc-b8fb-44d8-bc22-1f3c2cd27a39'
var receiverRole = '4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0'
// Of what there is, and of no message.
var readerRole = 'acdd72a7-3385-48ef-bd42-f606fba81ae7'

resource namespace 'Microsoft.ServiceBus/namespaces@2026-01-01' = {
  name: 'sb-${token}'
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
    // These three cannot be changed later: another choice means another topic.
    requiresDuplicateDetection: true
    enablePartitioning: false
    supportOrdering: true
    // Longer than any outage after which a worker sends from an old checkpoint again.
    duplicateDetectionHistoryTimeWindow: 'P1D'
    enableBatchedOperations: true
    defaultMessageTimeToLive: 'P14D'
    maxSizeInMegabytes: 5120
  }
}

resource consumer 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2024-01-01' = {
  parent: topic
  name: subscriptionName
  properties: {
    requiresSession: true
    lockDuration: 'PT1M'
    maxDeliveryCount: 10
    deadLetteringOnMessageExpiration: true
    deadLetteringOnFilterEvaluationExceptions: true
    defaultMessageTimeToLive: 'P14D'
    enableBatchedOperations: true
  }
}

resource directory 'Microsoft.ServiceBus/namespaces/topics/subscriptions@2024-01-01' = {
  parent: topic
  name: directorySubscriptionName
  properties: {
    requiresSession: true
    // A consumer trusts a lock for a minute at most.
    lockDuration: 'PT1M'
    // Crashes and lost locks count; a handler's attempts do not, which are all of one delivery.
    maxDeliveryCount: 10
    deadLetteringOnMessageExpiration: true
    deadLetteringOnFilterEvaluationExceptions: true
    defaultMessageTimeToLive: 'P14D'
    enableBatchedOperations: true
  }
}

resource sender 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(topic.id, senderPrincipalId, senderRole)
  scope: topic
  properties: {
    principalId: senderPrincipalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', senderRole)
  }
}

// What is replayed, or released after it was parked, is sent by the operator who runs the command.
resource operatorSenders 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for operatorPrincipalId in operatorPrincipalIds: {
  name: guid(topic.id, operatorPrincipalId, senderRole)
  scope: topic
  properties: {
    principalId: operatorPrincipalId
    principalType: operatorPrincipalType
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', senderRole)
  }
}]

resource receiver 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  name: guid(consumer.id, receiverPrincipalId, receiverRole)
  scope: consumer
  properties: {
    principalId: receiverPrincipalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', receiverRole)
  }
}

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
