// A deployment behind private endpoints, with one peered network, such as that of a cluster or of the operators.
using '../main.bicep'

param environmentName = 'private'
param location = 'westeurope'
param privateNetworking = true
param peeredNetworkIds = [
  '/subscriptions/11111111-1111-1111-1111-111111111111/resourceGroups/rg-peer/providers/Microsoft.Network/virtualNetworks/vnet-peer'
]
param peeredAddressPrefixes = [
  '10.224.0.0/16'
]
