// The worker. It has at least two replicas, and more while their cores are busy: Container Apps has no KEDA scaler for the change
// feed, but a worker that has much to send uses its core. More replicas than leases are useless: a worker without a lease only waits.
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
param leaseContainerName string
param parkedContainerName string
param processorName string

@description('Actions whose events are deleted once they are sent; * for all, empty for none.')
param deleteAfterPublish string

@description('The most messages a second of each worker; empty for no ceiling.')
param sendRate string

@description('Priority of the worker\'s reads of the change feed; empty for the default of the account.')
param readPriority string

@description('Throughput bucket in which the worker\'s reads of the change feed are counted; 0 for none.')
param throughputBucket int
param serviceBusNamespace string
param topicName string
param applicationInsightsName string

resource applicationInsights 'Microsoft.Insights/components@2020-02-02' existing = {
  name: applicationInsightsName
}

resource worker 'Microsoft.App/containerApps@2025-01-01' = {
  name: name
  location: location
  tags: union(tags, {
    'azd-service-name': 'worker'
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
      // This is longer than OUTBOX_GRACE_SECONDS, so that a draining worker can still release its leases.
      terminationGracePeriodSeconds: 60
      containers: [
        {
          name: 'worker'
          image: image
          resources: {
            cpu: json('0.5')
            memory: '1Gi'
          }
          env: concat([
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
              name: 'OUTBOX_LEASE_CONTAINER'
              value: leaseContainerName
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
              name: 'OUTBOX_PROCESSOR_NAME'
              value: processorName
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
          ], empty(deleteAfterPublish) ? [] : [
            {
              name: 'OUTBOX_DELETE_AFTER_PUBLISH'
              value: deleteAfterPublish
            }
          ], empty(sendRate) ? [] : [
            {
              name: 'OUTBOX_SEND_RATE'
              value: sendRate
            }
          ], empty(readPriority) ? [] : [
            {
              name: 'OUTBOX_PRIORITY'
              value: readPriority
            }
          ], throughputBucket == 0 ? [] : [
            {
              name: 'OUTBOX_THROUGHPUT_BUCKET'
              value: string(throughputBucket)
            }
          ])
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
            name: 'cpu'
            custom: {
              type: 'cpu'
              metadata: {
                type: 'Utilization'
                value: '70'
              }
            }
          }
        ]
      }
    }
  }
}
