// Several regions and zones, on trial: nothing is locked, and nothing is capped.
using '../main.bicep'

param environmentName = 'autoscale'
param location = 'westeurope'
param capacityMode = 'autoscale'
param zoneRedundant = true
param cosmosReplicaLocations = [
  'northeurope'
  'francecentral'
]
param serviceBusSku = 'Premium'
param serviceBusReplicaLocation = 'northeurope'
param topicMaxSizeInMegabytes = 81920
param deletionLocks = false
param logDailyCapGb = -1
