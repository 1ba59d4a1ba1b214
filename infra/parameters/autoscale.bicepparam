// Several regions and zones.
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
