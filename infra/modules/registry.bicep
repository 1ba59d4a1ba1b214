// The registry of the images. It stays reachable from outside even with private endpoints: images are pushed by
// builders that are not in the network, and each pull or push needs an Entra identity.
param location string
param tags object

@minLength(5)
@maxLength(50)
param name string
param pullPrincipalIds array

var pullRole = '7f951dda-4ed3-4680-a7ca-43fe172d538d'

resource registry 'Microsoft.ContainerRegistry/registries@2025-04-01' = {
  name: name
  location: location
  tags: tags
  sku: {
    name: 'Standard'
  }
  // checkov:skip=CKV_AZURE_139:images are pushed from outside the network; both push and pull need an Entra identity
  // checkov:skip=CKV_AZURE_166:quarantine needs Premium and a scanner that releases the images
  properties: {
    adminUserEnabled: false
    anonymousPullEnabled: false
  }
}

resource pullers 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for principalId in pullPrincipalIds: {
  name: guid(registry.id, principalId, pullRole)
  scope: registry
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', pullRole)
  }
}]

output loginServer string = registry.properties.loginServer
