// The Cosmos DB account, its database and its containers: three for API and worker, two for the consumer. Programs sign in to the data
// plane, which cannot create any of these, so this template creates them all.
param location string
param tags object

@minLength(3)
@maxLength(44)
param name string

@description('Locks the account, so that nothing in it can be deleted, roles included. Documents can still be deleted.')
param locked bool

@description('Logs the request units that each partition key uses in each second, with the key itself. This costs many lines.')
param hotPartitionLogs bool

@allowed([
  'autoscale'
  'serverless'
])
param capacityMode string

@minValue(1000)
param dataMaxThroughput int
param zoneRedundant bool

@description('Further regions, in the order in which they replace a failed region; not with serverless.')
param replicaLocations array
param automaticFailover bool

@allowed([
  'Enabled'
  'Disabled'
])
param publicNetworkAccess string
param databaseName string
param dataContainerName string
param leaseContainerName string
param parkedContainerName string
param directoryContainerName string
param directoryParkedContainerName string
param workspaceId string

var serverless = capacityMode == 'serverless'
var replicas = [for (replicaLocation, index) in replicaLocations: {
  locationName: replicaLocation
  failoverPriority: index + 1
  isZoneRedundant: zoneRedundant
}]

resource account 'Microsoft.DocumentDB/databaseAccounts@2024-11-15' = {
  name: name
  location: location
  tags: tags
  kind: 'GlobalDocumentDB'
  // checkov:skip=CKV_AZURE_101:open by default and closed by privateNetworking; without an Entra identity it answers nothing
  // checkov:skip=CKV_AZURE_99:the same parameter; an address filter would have to name the addresses of Container Apps
  properties: {
    databaseAccountOfferType: 'Standard'
    consistencyPolicy: {
      // This level is enough, because each reader of a commit passes on its session token. Stronger levels double the cost of reads.
      defaultConsistencyLevel: 'Session'
    }
    locations: concat([
      {
        locationName: location
        failoverPriority: 0
        isZoneRedundant: zoneRedundant
      }
    ], replicas)
    // Only one region accepts writes. With several, changes of one partition key could have two orders.
    enableMultipleWriteLocations: false
    enableAutomaticFailover: automaticFailover && !empty(replicaLocations)
    capabilities: serverless ? [
      {
        name: 'EnableServerless'
      }
    ] : []
    disableLocalAuth: true
    disableKeyBasedMetadataWriteAccess: true
    minimalTlsVersion: 'Tls12'
    publicNetworkAccess: publicNetworkAccess
    networkAclBypass: 'None'
    backupPolicy: {
      type: 'Continuous'
      continuousModeProperties: {
        tier: 'Continuous7Days'
      }
    }
  }
}

resource database 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases@2024-11-15' = {
  parent: account
  name: databaseName
  properties: {
    resource: {
      id: databaseName
    }
  }
}

resource data 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers@2024-11-15' = {
  parent: database
  name: dataContainerName
  properties: {
    resource: {
      id: dataContainerName
      partitionKey: {
        paths: [
          '/partitionKey'
        ]
        kind: 'Hash'
        version: 2
      }
      // -1 lets a document's own `ttl` take effect, and nothing else expires. Without a default TTL, events would stay for ever.
      defaultTtl: -1
      indexingPolicy: {
        indexingMode: 'consistent'
        automatic: true
        // Only the properties by which queries filter and sort are indexed, because each further path raises the cost of every write.
        includedPaths: [
          {
            path: '/type/?'
          }
          {
            path: '/data/deleted/?'
          }
          // Listings sort by the partition key if a page ends among documents with the same id. A partition key is not indexed by itself.
          {
            path: '/partitionKey/?'
          }
        ]
        excludedPaths: [
          {
            path: '/*'
          }
        ]
      }
    }
    options: serverless ? {} : {
      autoscaleSettings: {
        maxThroughput: dataMaxThroughput
      }
    }
  }
}

resource leases 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers@2024-11-15' = {
  parent: database
  name: leaseContainerName
  properties: {
    resource: {
      id: leaseContainerName
      partitionKey: {
        paths: [
          '/id'
        ]
        kind: 'Hash'
        version: 2
      }
      // -1 lets the `ttl` of the bootstrap lock take effect.
      defaultTtl: -1
    }
    options: serverless ? {} : {
      autoscaleSettings: {
        maxThroughput: 1000
      }
    }
  }
}

resource parked 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers@2024-11-15' = {
  parent: database
  name: parkedContainerName
  properties: {
    resource: {
      id: parkedContainerName
      partitionKey: {
        paths: [
          '/partitionKey'
        ]
        kind: 'Hash'
        version: 2
      }
      defaultTtl: -1
    }
    options: serverless ? {} : {
      autoscaleSettings: {
        maxThroughput: 1000
      }
    }
  }
}

resource directory 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers@2024-11-15' = {
  parent: database
  name: directoryContainerName
  properties: {
    resource: {
      id: directoryContainerName
      partitionKey: {
        paths: [
          '/partitionKey'
        ]
        kind: 'Hash'
        version: 2
      }
      // -1 lets the `ttl` of inbox records, and of the events that the consumer's handlers write, take effect.
      defaultTtl: -1
      // The handlers of this consumer read only by id. Add the paths by which your handlers query, as in `data`.
      indexingPolicy: {
        indexingMode: 'consistent'
        automatic: true
        includedPaths: []
        excludedPaths: [
          {
            path: '/*'
          }
        ]
      }
    }
    options: serverless ? {} : {
      autoscaleSettings: {
        maxThroughput: 1000
      }
    }
  }
}

resource directoryParked 'Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers@2024-11-15' = {
  parent: database
  name: directoryParkedContainerName
  properties: {
    resource: {
      id: directoryParkedContainerName
      partitionKey: {
        paths: [
          '/partitionKey'
        ]
        kind: 'Hash'
        version: 2
      }
      defaultTtl: -1
    }
    options: serverless ? {} : {
      autoscaleSettings: {
        maxThroughput: 1000
      }
    }
  }
}

resource lock 'Microsoft.Authorization/locks@2020-05-01' = if (locked) {
  scope: account
  name: 'outbox'
  properties: {
    level: 'CanNotDelete'
    notes: 'Holds events that are not sent yet. Take this lock away only to delete it for good.'
  }
}

resource diagnostics 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  scope: account
  name: 'workspace'
  properties: {
    workspaceId: workspaceId
    // Each category is logged to a table of its own, such as CDBPartitionKeyRUConsumption.
    logAnalyticsDestinationType: 'Dedicated'
    logs: [
      // DataPlaneRequests is left out: one line for each request costs more than the requests, and contains the partition keys.
      {
        category: 'ControlPlaneRequests'
        enabled: true
      }
      {
        category: 'PartitionKeyRUConsumption'
        enabled: hotPartitionLogs
      }
    ]
    metrics: [
      {
        category: 'Requests'
        enabled: true
      }
    ]
  }
}

output id string = account.id
output name string = account.name
output endpoint string = account.properties.documentEndpoint
