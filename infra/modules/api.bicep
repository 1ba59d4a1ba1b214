// The contacts API, the example of a service that writes events, as an app of Container Apps.
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
param external bool
param cosmosEndpoint string
param databaseName string
param dataContainerName string
param applicationInsightsName string

resource applicationInsights 'Microsoft.Insights/components@2020-02-02' existing = {
  name: applicationInsightsName
}

resource api 'Microsoft.App/containerApps@2025-01-01' = {
  name: name
  location: location
  tags: union(tags, {
    'azd-service-name': 'api'
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
      ingress: {
        external: external
        // The platform probes this port by itself. The placeholder image listens on port 80, and would not get healthy with another port.
        targetPort: probed ? 8000 : 80
        transport: 'auto'
        allowInsecure: false
      }
      registries: [
        {
          server: registryServer
          identity: identityId
        }
      ]
    }
    template: {
      terminationGracePeriodSeconds: 30
      containers: [
        {
          name: 'api'
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
                path: '/healthz'
                port: 8000
              }
              periodSeconds: 2
              failureThreshold: 60
            }
            {
              type: 'Liveness'
              httpGet: {
                path: '/healthz'
                port: 8000
              }
              periodSeconds: 10
              failureThreshold: 3
            }
          ] : []
        }
      ]
      scale: {
        minReplicas: 2
        maxReplicas: 10
        rules: [
          {
            name: 'http'
            http: {
              metadata: {
                concurrentRequests: '50'
              }
            }
          }
        ]
      }
    }
  }
}

output url string = 'https://${api.properties.configuration.ingress.fqdn}'
