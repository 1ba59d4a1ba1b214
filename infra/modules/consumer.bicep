// The consumer that keeps the company directory. It has at least two replicas, and more if many messages wait in its subscription.
param location string
param tags object
param name string
param environmentId string
param identityId string
param identityClientId string
param registryServer string
param image string

@description('False while the app still runs the placeholder image, which would fail every probe.')
param probed bool

@minValue(2)
param maxReplicas int
param cosmosEndpoint string
param databaseName string
param dataContainerName string
param parkedContainerName string
param serviceBusName string
param serviceBusNamespace string
param topicName string
param subscriptionName string
param applicationInsightsName string

resource applicationInsights 'Microsoft.Insights/components@2020-02-02' existing = {
  name: applicationInsightsName
}

resource consumer 'Microsoft.App/containerApps@2025-01-01' = {
  name: name
  location: location
  tags: union(tags, {
    'azd-service-name': 'consumer'
  })
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: {
      '${identityId}': {}
    }
  }
  properties: {
    environmentId: environmentId
    workloadProfileName: 'Consumption'
    configuration: {
      activeRevisionsMode: 'Single'
      registries: [
        {
          server: registryServer
          identity: identityId
        }
      ]
    }
    template: {
      // This is longer than OUTBOX_GRACE_SECONDS, so that a draining consumer can still release its sessions.
      terminationGracePeriodSeconds: 60
      containers: [
        {
          name: 'consumer'
          image: image
          resources: {
            cpu: json('0.5')
            memory: '1Gi'
          }
          env: [
            {
              name: 'AZURE_CLIENT_ID'
              value: identityClientId
            }
            {
              name: 'OUTBOX_COSMOS_ENDPOINT'
              value: cosmosEndpoint
            }
            {
              name: 'OUTBOX_COSMOS_DATABASE'
              value: databaseName
            }
            {
              name: 'OUTBOX_COSMOS_CONTAINER'
              value: dataContainerName
            }
            {
              name: 'OUTBOX_PARKED_CONTAINER'
              value: parkedContainerName
            }
            {
              name: 'OUTBOX_SERVICEBUS_NAMESPACE'
              value: serviceBusNamespace
            }
            {
              name: 'OUTBOX_TOPIC'
              value: topicName
            }
            {
              name: 'OUTBOX_SUBSCRIPTION'
              value: subscriptionName
            }
            {
              name: 'OUTBOX_GRACE_SECONDS'
              value: '40'
            }
            // This string says where telemetry is sent. It is no secret, because local authentication is switched off.
            {
              name: 'APPLICATIONINSIGHTS_CONNECTION_STRING'
              value: applicationInsights.properties.ConnectionString
            }
          ]
          probes: probed ? [
            {
              type: 'Startup'
              httpGet: {
                path: '/livez'
                port: 8080
              }
              periodSeconds: 2
              failureThreshold: 60
            }
            {
              type: 'Liveness'
              httpGet: {
                path: '/livez'
                port: 8080
              }
              periodSeconds: 10
              failureThreshold: 6
            }
            {
              type: 'Readiness'
              httpGet: {
                path: '/readyz'
                port: 8080
              }
              periodSeconds: 10
              failureThreshold: 6
            }
          ] : []
        }
      ]
      scale: {
        minReplicas: 2
        maxReplicas: maxReplicas
        rules: [
          {
            name: 'messages'
            custom: {
              type: 'azure-servicebus'
              // The scaler signs in as the consumer, whose right to receive includes the right to read how many messages wait.
              identity: identityId
              metadata: {
                // Only the name of the namespace: the scaler adds the rest of the host name.
                namespace: serviceBusName
                topicName: topicName
                subscriptionName: subscriptionName
                messageCount: '100'
              }
            }
          }
        ]
      }
    }
  }
}
