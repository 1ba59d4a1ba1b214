// Log Analytics and Application Insights. Both refuse keys: telemetry is sent with the service's identity.
param location string
param tags object
param workspaceName string
param applicationInsightsName string

@description('Principals that may send metrics and spans.')
param publisherPrincipalIds array

@description('Most data that Log Analytics accepts in a day, in GB; -1 for no limit.')
param dailyCapGb int

@minValue(30)
param retentionInDays int = 30

var metricsPublisherRole = '3913510d-42f4-4e42-8a64-420c390055eb'

resource workspace 'Microsoft.OperationalInsights/workspaces@2023-09-01' = {
  name: workspaceName
  location: location
  tags: tags
  properties: {
    sku: {
      name: 'PerGB2018'
    }
    retentionInDays: retentionInDays
    workspaceCapping: {
      dailyQuotaGb: dailyCapGb
    }
    features: {
      disableLocalAuth: true
      enableLogAccessUsingOnlyResourcePermissions: true
    }
  }
}

resource applicationInsights 'Microsoft.Insights/components@2020-02-02' = {
  name: applicationInsightsName
  location: location
  tags: tags
  kind: 'web'
  properties: {
    Application_Type: 'web'
    WorkspaceResourceId: workspace.id
    IngestionMode: 'LogAnalytics'
    DisableLocalAuth: true
  }
}

resource publisher 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for publisherPrincipalId in publisherPrincipalIds: {
  name: guid(applicationInsights.id, publisherPrincipalId, metricsPublisherRole)
  scope: applicationInsights
  properties: {
    principalId: publisherPrincipalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', metricsPublisherRole)
  }
}]

output workspaceId string = workspace.id
output applicationInsightsName string = applicationInsights.name
// This string says where telemetry is sent. It is no secret, because local authentication is switched off.
output telemetryDestination string = applicationInsights.properties.ConnectionString
