// Data-plane roles, which say what each identity may do with documents. Each role is assigned on one container. In addition, all
// identities have a role on the account, because every SDK begins by reading the account itself (GET /). Microsoft's table of what
// readMetadata allows does not list this request at any scope, so it is not known whether a role on a container is enough for it; a
// role on the account is. It shows the names and indexes of databases and containers, but no documents.
//
// An account accepts one change of its roles at a time, so dependsOn joins the changes to a chain. A resource that may not be deployed,
// because of a condition or an empty loop, cannot be a link of the chain. After it, the chain also names the last unconditional resource.
param accountName string
param databaseName string
param dataContainerName string
param leaseContainerName string
param parkedContainerName string
param directoryContainerName string
param directoryParkedContainerName string
param apiPrincipalId string
param workerPrincipalId string
param consumerPrincipalId string
param kedaPrincipalId string

@description('Whether the worker deletes events once they are sent. Otherwise it gets no right to write in their container.')
param workerDeletes bool

@description('Whether KEDA computes from the leases and the change feed how many workers are needed; on AKS only.')
param withKeda bool

@description('Operators, who release parked keys (those of a consumer by its handlers) and replay events. One group is enough.')
param operatorPrincipalIds array

@description('Operators who may also move positions, by `leases reset`.')
param leaseOperatorPrincipalIds array

var readMetadata = 'Microsoft.DocumentDB/databaseAccounts/readMetadata'
var containers = 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers'
var items = '${containers}/items'
// The ids of these principals are known only during the deployment, and Azure previews no loop over such values. So the loop is over the names.
var principalIds = {
  api: apiPrincipalId
  worker: workerPrincipalId
  consumer: consumerPrincipalId
  keda: kedaPrincipalId
}
var services = concat([
  'api'
  'worker'
  'consumer'
], withKeda ? [
  'keda'
] : [])

resource account 'Microsoft.DocumentDB/databaseAccounts@2024-11-15' existing = {
  name: accountName
}

resource documentWriter 'Microsoft.DocumentDB/databaseAccounts/sqlRoleDefinitions@2024-11-15' = {
  parent: account
  name: guid(account.id, 'outbox-document-writer')
  properties: {
    roleName: 'outbox-document-writer'
    type: 'CustomRole'
    assignableScopes: [
      account.id
    ]
    permissions: [
      {
        dataActions: [
          readMetadata
          '${items}/create'
          '${items}/read'
          '${items}/replace'
          '${items}/delete'
          '${containers}/executeQuery'
        ]
      }
    ]
  }
}

// An attacker who takes over a program with this role can write documents, but cannot delete events before they are sent. A program
// that deletes its entities for good needs documentWriter instead.
resource documentKeeper 'Microsoft.DocumentDB/databaseAccounts/sqlRoleDefinitions@2024-11-15' = {
  parent: account
  name: guid(account.id, 'outbox-document-keeper')
  dependsOn: [
    documentWriter
  ]
  properties: {
    roleName: 'outbox-document-keeper'
    type: 'CustomRole'
    assignableScopes: [
      account.id
    ]
    permissions: [
      {
        dataActions: [
          readMetadata
          '${items}/create'
          '${items}/read'
          '${items}/replace'
          '${containers}/executeQuery'
        ]
      }
    ]
  }
}

resource feedReader 'Microsoft.DocumentDB/databaseAccounts/sqlRoleDefinitions@2024-11-15' = {
  parent: account
  name: guid(account.id, 'outbox-feed-reader')
  dependsOn: [
    documentKeeper
  ]
  properties: {
    roleName: 'outbox-feed-reader'
    type: 'CustomRole'
    assignableScopes: [
      account.id
    ]
    permissions: [
      {
        dataActions: [
          readMetadata
          '${containers}/readChangeFeed'
          '${containers}/executeQuery' // of one key, for `where` and the status page; the feed has the same documents
        ]
      }
    ]
  }
}

resource eventDeleter 'Microsoft.DocumentDB/databaseAccounts/sqlRoleDefinitions@2024-11-15' = {
  parent: account
  name: guid(account.id, 'outbox-event-deleter')
  dependsOn: [
    feedReader
  ]
  properties: {
    roleName: 'outbox-event-deleter'
    type: 'CustomRole'
    assignableScopes: [
      account.id
    ]
    permissions: [
      {
        dataActions: [
          readMetadata
          '${items}/delete'
        ]
      }
    ]
  }
}

resource leaseReader 'Microsoft.DocumentDB/databaseAccounts/sqlRoleDefinitions@2024-11-15' = {
  parent: account
  name: guid(account.id, 'outbox-lease-reader')
  dependsOn: [
    eventDeleter
  ]
  properties: {
    roleName: 'outbox-lease-reader'
    type: 'CustomRole'
    assignableScopes: [
      account.id
    ]
    permissions: [
      {
        dataActions: [
          readMetadata
          '${items}/read'
          '${containers}/executeQuery'
        ]
      }
    ]
  }
}

resource metadataReader 'Microsoft.DocumentDB/databaseAccounts/sqlRoleDefinitions@2024-11-15' = {
  parent: account
  name: guid(account.id, 'outbox-metadata-reader')
  dependsOn: [
    leaseReader
  ]
  properties: {
    roleName: 'outbox-metadata-reader'
    type: 'CustomRole'
    assignableScopes: [
      account.id
    ]
    permissions: [
      {
        dataActions: [
          readMetadata
        ]
      }
    ]
  }
}

@batchSize(1)
resource servicesOnAccount 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = [for service in services: {
  parent: account
  name: guid(account.id, principalIds[service], 'metadata')
  properties: {
    principalId: principalIds[service]
    roleDefinitionId: metadataReader.id
    scope: account.id
  }
}]

@batchSize(1)
resource operatorsOnAccount 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = [for operatorPrincipalId in union(operatorPrincipalIds, leaseOperatorPrincipalIds): {
  parent: account
  name: guid(account.id, operatorPrincipalId, 'metadata')
  dependsOn: [
    servicesOnAccount
  ]
  properties: {
    principalId: operatorPrincipalId
    roleDefinitionId: metadataReader.id
    scope: account.id
  }
}]

resource apiOnData 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = {
  parent: account
  name: guid(account.id, apiPrincipalId, dataContainerName, 'write')
  dependsOn: [
    servicesOnAccount
    operatorsOnAccount
  ]
  properties: {
    principalId: apiPrincipalId
    roleDefinitionId: documentKeeper.id
    scope: '${account.id}/dbs/${databaseName}/colls/${dataContainerName}'
  }
}

resource workerOnData 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = {
  parent: account
  name: guid(account.id, workerPrincipalId, dataContainerName, 'feed')
  dependsOn: [
    apiOnData
  ]
  properties: {
    principalId: workerPrincipalId
    roleDefinitionId: feedReader.id
    scope: '${account.id}/dbs/${databaseName}/colls/${dataContainerName}'
  }
}

resource workerDeletesOnData 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = if (workerDeletes) {
  parent: account
  name: guid(account.id, workerPrincipalId, dataContainerName, 'delete')
  dependsOn: [
    workerOnData
  ]
  properties: {
    principalId: workerPrincipalId
    roleDefinitionId: eventDeleter.id
    scope: '${account.id}/dbs/${databaseName}/colls/${dataContainerName}'
  }
}

resource workerOnLeases 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = {
  parent: account
  name: guid(account.id, workerPrincipalId, leaseContainerName, 'write')
  dependsOn: [
    workerOnData
    workerDeletesOnData
  ]
  properties: {
    principalId: workerPrincipalId
    roleDefinitionId: documentWriter.id
    scope: '${account.id}/dbs/${databaseName}/colls/${leaseContainerName}'
  }
}

resource workerOnParked 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = {
  parent: account
  name: guid(account.id, workerPrincipalId, parkedContainerName, 'write')
  dependsOn: [
    workerOnLeases
  ]
  properties: {
    principalId: workerPrincipalId
    roleDefinitionId: documentWriter.id
    scope: '${account.id}/dbs/${databaseName}/colls/${parkedContainerName}'
  }
}

resource consumerOnDirectory 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = {
  parent: account
  name: guid(account.id, consumerPrincipalId, directoryContainerName, 'effects')
  dependsOn: [
    workerOnParked
  ]
  properties: {
    principalId: consumerPrincipalId
    roleDefinitionId: documentWriter.id
    scope: '${account.id}/dbs/${databaseName}/colls/${directoryContainerName}'
  }
}

resource consumerOnDirectoryParked 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = {
  parent: account
  name: guid(account.id, consumerPrincipalId, directoryParkedContainerName, 'effects')
  dependsOn: [
    consumerOnDirectory
  ]
  properties: {
    principalId: consumerPrincipalId
    roleDefinitionId: documentWriter.id
    scope: '${account.id}/dbs/${databaseName}/colls/${directoryParkedContainerName}'
  }
}

resource kedaOnData 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = if (withKeda) {
  parent: account
  name: guid(account.id, kedaPrincipalId, dataContainerName, 'feed')
  dependsOn: [
    consumerOnDirectoryParked
  ]
  properties: {
    principalId: kedaPrincipalId
    roleDefinitionId: feedReader.id
    scope: '${account.id}/dbs/${databaseName}/colls/${dataContainerName}'
  }
}

resource kedaOnLeases 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = if (withKeda) {
  parent: account
  name: guid(account.id, kedaPrincipalId, leaseContainerName, 'read')
  dependsOn: [
    kedaOnData
  ]
  properties: {
    principalId: kedaPrincipalId
    roleDefinitionId: leaseReader.id
    scope: '${account.id}/dbs/${databaseName}/colls/${leaseContainerName}'
  }
}

@batchSize(1)
resource operatorOnData 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = [for operatorPrincipalId in operatorPrincipalIds: {
  parent: account
  name: guid(account.id, operatorPrincipalId, dataContainerName, 'feed')
  dependsOn: [
    consumerOnDirectoryParked
    kedaOnLeases
  ]
  properties: {
    principalId: operatorPrincipalId
    roleDefinitionId: feedReader.id
    scope: '${account.id}/dbs/${databaseName}/colls/${dataContainerName}'
  }
}]

@batchSize(1)
resource operatorOnLeases 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = [for operatorPrincipalId in operatorPrincipalIds: {
  parent: account
  name: guid(account.id, operatorPrincipalId, leaseContainerName, 'read')
  dependsOn: [
    operatorOnData
  ]
  properties: {
    principalId: operatorPrincipalId
    roleDefinitionId: leaseReader.id
    scope: '${account.id}/dbs/${databaseName}/colls/${leaseContainerName}'
  }
}]

@batchSize(1)
resource leaseOperatorOnLeases 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = [for operatorPrincipalId in leaseOperatorPrincipalIds: {
  parent: account
  name: guid(account.id, operatorPrincipalId, leaseContainerName, 'write')
  dependsOn: [
    consumerOnDirectoryParked
    kedaOnLeases
    operatorOnLeases
  ]
  properties: {
    principalId: operatorPrincipalId
    roleDefinitionId: documentWriter.id
    scope: '${account.id}/dbs/${databaseName}/colls/${leaseContainerName}'
  }
}]

@batchSize(1)
resource operatorOnParked 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = [for operatorPrincipalId in operatorPrincipalIds: {
  parent: account
  name: guid(account.id, operatorPrincipalId, parkedContainerName, 'write')
  dependsOn: [
    operatorOnLeases
    leaseOperatorOnLeases
  ]
  properties: {
    principalId: operatorPrincipalId
    roleDefinitionId: documentWriter.id
    scope: '${account.id}/dbs/${databaseName}/colls/${parkedContainerName}'
  }
}]

@batchSize(1)
resource operatorOnDirectory 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = [for operatorPrincipalId in operatorPrincipalIds: {
  parent: account
  name: guid(account.id, operatorPrincipalId, directoryContainerName, 'effects')
  dependsOn: [
    operatorOnParked
  ]
  properties: {
    principalId: operatorPrincipalId
    roleDefinitionId: documentWriter.id
    scope: '${account.id}/dbs/${databaseName}/colls/${directoryContainerName}'
  }
}]

@batchSize(1)
resource operatorOnDirectoryParked 'Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments@2024-11-15' = [for operatorPrincipalId in operatorPrincipalIds: {
  parent: account
  name: guid(account.id, operatorPrincipalId, directoryParkedContainerName, 'effects')
  dependsOn: [
    operatorOnDirectory
  ]
  properties: {
    principalId: operatorPrincipalId
    roleDefinitionId: documentWriter.id
    scope: '${account.id}/dbs/${databaseName}/colls/${directoryParkedContainerName}'
  }
}]

output metadataReaderId string = metadataReader.id
