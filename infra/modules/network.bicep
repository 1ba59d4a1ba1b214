// The network for private endpoints: one subnet for Container Apps, one for the endpoints.
param location string
param tags object
param name string
param securityGroupName string
param prefix string

@description('Addresses in peered networks whose clients may also use the endpoints.')
param peeredAddressPrefixes array

var appsAddresses = '${prefix}.0.0/23'
var endpointsAddresses = '${prefix}.2.0/24'

resource endpointsRules 'Microsoft.Network/networkSecurityGroups@2024-05-01' = {
  name: securityGroupName
  location: location
  tags: tags
  properties: {
    securityRules: [
      {
        name: 'from-clients'
        properties: {
          priority: 100
          direction: 'Inbound'
          access: 'Allow'
          protocol: 'Tcp'
          sourceAddressPrefixes: union([
            appsAddresses
          ], peeredAddressPrefixes)
          sourcePortRange: '*'
          destinationAddressPrefix: endpointsAddresses
          // 443 is the port of Cosmos DB's gateway, 5671 that of AMQP over TLS.
          destinationPortRanges: [
            '443'
            '5671'
          ]
        }
      }
      {
        name: 'no-other-source'
        properties: {
          priority: 4096
          direction: 'Inbound'
          access: 'Deny'
          protocol: '*'
          sourceAddressPrefix: '*'
          sourcePortRange: '*'
          destinationAddressPrefix: '*'
          destinationPortRange: '*'
        }
      }
    ]
  }
}

resource virtualNetwork 'Microsoft.Network/virtualNetworks@2024-05-01' = {
  name: name
  location: location
  tags: tags
  properties: {
    addressSpace: {
      addressPrefixes: [
        '${prefix}.0.0/16'
      ]
    }
    subnets: [
      {
        name: 'apps'
        properties: {
          addressPrefix: appsAddresses
          delegations: [
            {
              name: 'container-apps'
              properties: {
                serviceName: 'Microsoft.App/environments'
              }
            }
          ]
        }
      }
      {
        name: 'endpoints'
        properties: {
          addressPrefix: endpointsAddresses
          // Without this setting, the security group above does not apply to private endpoints.
          privateEndpointNetworkPolicies: 'Enabled'
          networkSecurityGroup: {
            id: endpointsRules.id
          }
        }
      }
    ]
  }
}

output networkId string = virtualNetwork.id
output appsSubnetId string = resourceId('Microsoft.Network/virtualNetworks/subnets', virtualNetwork.name, 'apps')
output endpointsSubnetId string = resourceId('Microsoft.Network/virtualNetworks/subnets', virtualNetwork.name, 'endpoints')
