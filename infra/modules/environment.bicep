// The Container Apps environment. Its logs are sent by a diagnostic setting, which needs no workspace key.
param location string
param tags object
param name string
param workspaceId string

@description('Subnet of the environment; empty for a network of the platform.')
param subnetId string
param internal bool
param zoneRedundant bool

resource environment 'Microsoft.App/managedEnvironments@2025-01-01' = {
  name: name
  location: location
  tags: tags
  properties: {
    appLogsConfiguration: {
      destination: 'azure-monitor'
    }
    zoneRedundant: zoneRedundant
    vnetConfiguration: empty(subnetId) ? null : {
      infrastructureSubnetId: subnetId
      internal: internal
    }
    workloadProfiles: [
      {
        name: 'Consumption'
        workloadProfileType: 'Consumption'
      }
    ]
  }
}

resource diagnostics 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  scope: environment
  name: 'workspace'
  properties: {
    workspaceId: workspaceId
    logs: [
      {
        categoryGroup: 'allLogs'
        enabled: true
      }
    ]
  }
}

output id string = environment.id
