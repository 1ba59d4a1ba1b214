// A trial with several regions and zones: nothing is locked against deletion, and logs have no daily limit.
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
