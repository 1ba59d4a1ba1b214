// One managed identity for each service, so that each service gets only the rights that it needs.
param location string
param tags object

@description('Names of the identities, by the keys apiIdentity and so on.')
param names object

@description('OIDC issuer of the AKS cluster; empty if no cluster runs worker and consumer.')
param aksOidcIssuerUrl string

param kedaServiceAccount string

@description('Namespace and service account of the worker in the Kubernetes manifests.')
param workerServiceAccount string = 'outbox:outbox-worker'
param consumerServiceAccount string = 'outbox:outbox-consumer'

resource api 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: names.apiIdentity
  location: location
  tags: tags
}

resource worker 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: names.workerIdentity
  location: location
  tags: tags
}

resource consumer 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: names.consumerIdentity
  location: location
  tags: tags
}

resource keda 'Microsoft.ManagedIdentity/userAssignedIdentities@2023-01-31' = {
  name: names.kedaIdentity
  location: location
  tags: tags
}

resource workerOnAks 'Microsoft.ManagedIdentity/userAssignedIdentities/federatedIdentityCredentials@2023-01-31' = if (!empty(aksOidcIssuerUrl)) {
  parent: worker
  name: 'aks'
  properties: {
    issuer: aksOidcIssuerUrl
    subject: 'system:serviceaccount:${workerServiceAccount}'
    audiences: [
      'api://AzureADTokenExchange'
    ]
  }
}

resource consumerOnAks 'Microsoft.ManagedIdentity/userAssignedIdentities/federatedIdentityCredentials@2023-01-31' = if (!empty(aksOidcIssuerUrl)) {
  parent: consumer
  name: 'aks'
  properties: {
    issuer: aksOidcIssuerUrl
    subject: 'system:serviceaccount:${consumerServiceAccount}'
    audiences: [
      'api://AzureADTokenExchange'
    ]
  }
}

resource kedaOnAks 'Microsoft.ManagedIdentity/userAssignedIdentities/federatedIdentityCredentials@2023-01-31' = if (!empty(aksOidcIssuerUrl)) {
  parent: keda
  name: 'aks'
  properties: {
    issuer: aksOidcIssuerUrl
    subject: 'system:serviceaccount:${kedaServiceAccount}'
    audiences: [
      'api://AzureADTokenExchange'
    ]
  }
}

output apiId string = api.id
output apiClientId string = api.properties.clientId
output apiPrincipalId string = api.properties.principalId
output workerId string = worker.id
output workerClientId string = worker.properties.clientId
output workerPrincipalId string = worker.properties.principalId
output consumerId string = consumer.id
output consumerClientId string = consumer.properties.clientId
output consumerPrincipalId string = consumer.properties.principalId
output kedaClientId string = keda.properties.clientId
output kedaPrincipalId string = keda.properties.principalId
