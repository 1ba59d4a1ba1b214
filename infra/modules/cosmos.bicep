// The account, its database and the containers: three of API and worker, two of the consumer. Data-plane sign-in cannot
// create any of them, so they all are here.
param location string
param tags object

@minLength(3)
@maxLength(44)
param name string

@description('Nothing in the account can be deleted while it is locked, roles included; documents can.')
param locked bool

@description('Names the partition keys, and costs a line for what each uses in a second.')
param hotPartitionLogs bool

@allowed([
  'autoscale'
  'serverless'
])
param capacityMode string

@minValue(1000)
param dataMaxThroughput int
param zoneRedundant bool

@description('Further regions, in the order in which they take over; not with serverless.')
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
      // Each reader of a commit passes on its session token; stronger levels cost reads twice.
      defaultConsistencyLevel: 'Session'
    }
    locations: concat([
      {
        locationName: location
        failoverPriority: 0
        isZoneRedundant: zoneRedundant
      }
    ], replicas)
    // One region writes. With several, changes of a key could be ordered in two ways.
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
      // On, without expiry: only a document's own `ttl` counts. Off, events would stay for ever.
      defaultTtl: -1
      indexingPolicy: {
        indexingMode: 'consistent'
        automatic: true
        // Only what queries filter on and sort by: each further path makes every write of an event dearer.
        includedPaths: [
          {
            path: '/type/?'
          }
          {
            path: '/data/deleted/?'
          }
          // Listings sort by it where a page ends among documents of one id; being the partition key indexes nothing.
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
      // The bootstrap lock carries its own `ttl`.
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
      // What a consumer remembers of messages, and the events of its handlers, carry their own `ttl`.
      defaultTtl: -1
      // Its handlers read by id. Add what yours query for, as in `data`.
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
    // Into tables of their own, such as CDBPartitionKeyRUConsumption.
    logAnalyticsDestinationType: 'Dedicated'
    logs: [
      // Not DataPlaneRequests: a line a request costs more than the requests, and names the partition keys.
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
